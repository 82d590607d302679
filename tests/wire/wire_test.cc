// Clients of the last release must be understood: today's folio.v1 is compared with the descriptor
// set of version 0.1.0. At a release the set is written again:
//   protoc --include_imports --descriptor_set_out=tests/wire/folio_v1.binpb -I proto
//   proto/folio/v1/*.proto
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "folio/v1/control.pb.h"
#include "folio/v1/documents.pb.h"
#include "folio/v1/inference.pb.h"
#include "folio/v1/text.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace folio::v1 {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::ServiceDescriptor;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// What a client made against `before` would stumble over in `now`, a line each. Names count, too:
// JSON and parameters by name use them.
class Comparison {
 public:
  Comparison(const DescriptorPool& before, const DescriptorPool& now)
      : before_(before), now_(now) {}

  std::vector<std::string> Of(const std::vector<std::string>& files) {
    for (const std::string& name : files) {
      const FileDescriptor& file = *before_.FindFileByName(name);
      for (int i = 0; i < file.message_type_count(); ++i) Compare(*file.message_type(i));
      for (int i = 0; i < file.enum_type_count(); ++i) Compare(*file.enum_type(i));
      for (int i = 0; i < file.service_count(); ++i) Compare(*file.service(i));
    }
    return found_;
  }

 private:
  void Note(const std::string& what, const std::string& problem) {
    found_.push_back(what + ": " + problem);
  }

  void Compare(const Descriptor& was) {
    const Descriptor* is = now_.FindMessageTypeByName(was.full_name());
    if (is == nullptr) return Note(was.full_name(), "the message is gone");
    for (int i = 0; i < was.field_count(); ++i) Compare(*was.field(i), *is);
    for (int i = 0; i < is->field_count(); ++i) {
      const FieldDescriptor& field = *is->field(i);
      if (was.IsReservedNumber(field.number()) || was.IsReservedName(field.name())) {
        Note(field.full_name(), "uses a number or name that was reserved");
      }
    }
    for (int i = 0; i < was.nested_type_count(); ++i) Compare(*was.nested_type(i));
    for (int i = 0; i < was.enum_type_count(); ++i) Compare(*was.enum_type(i));
  }

  void Compare(const FieldDescriptor& was, const Descriptor& message) {
    const FieldDescriptor* is = message.FindFieldByNumber(was.number());
    if (is == nullptr) {
      if (!message.IsReservedNumber(was.number()) || !message.IsReservedName(was.name())) {
        Note(was.full_name(), "the field is gone and its number and name are not reserved");
      }
      return;
    }
    if (is->name() != was.name()) Note(was.full_name(), "is named " + is->name());
    if (is->is_repeated() != was.is_repeated())
      Note(was.full_name(), "repeated or not has changed");
    if (TypeOf(*is) != TypeOf(was)) {
      Note(was.full_name(), std::string("was ") + was.type_name() + ", is " + is->type_name());
    }
    if (OneofOf(*is) != OneofOf(was)) Note(was.full_name(), "the oneof it belongs to has changed");
  }

  void Compare(const EnumDescriptor& was) {
    const EnumDescriptor* is = now_.FindEnumTypeByName(was.full_name());
    if (is == nullptr) return Note(was.full_name(), "the enumeration is gone");
    for (int i = 0; i < was.value_count(); ++i) {
      const auto& value = *was.value(i);
      const auto* same = is->FindValueByNumber(value.number());
      const bool reserved =
          is->IsReservedNumber(value.number()) && is->IsReservedName(value.name());
      if (same == nullptr && !reserved) {
        Note(value.full_name(), "the value is gone and its number and name are not reserved");
      } else if (same != nullptr && same->name() != value.name()) {
        Note(value.full_name(), "is named " + same->name());
      }
    }
  }

  void Compare(const ServiceDescriptor& was) {
    const ServiceDescriptor* is = now_.FindServiceByName(was.full_name());
    if (is == nullptr) return Note(was.full_name(), "the service is gone");
    for (int i = 0; i < was.method_count(); ++i) {
      const auto& method = *was.method(i);
      const auto* same = is->FindMethodByName(method.name());
      if (same == nullptr) {
        Note(method.full_name(), "the method is gone");
      } else if (same->client_streaming() != method.client_streaming() ||
                 same->server_streaming() != method.server_streaming()) {
        Note(method.full_name(), "streaming has changed");
      } else if (same->input_type()->full_name() != method.input_type()->full_name() ||
                 same->output_type()->full_name() != method.output_type()->full_name()) {
        Note(method.full_name(), "request or response has changed");
      }
    }
  }

  // Equal for types whose numbers look the same on the wire and mean the same: int32, uint32 and
  // every enumeration are varints of 32 bits. An enumeration must stay the same one.
  static std::string TypeOf(const FieldDescriptor& field) {
    switch (field.type()) {
      case FieldDescriptor::TYPE_MESSAGE:
        return field.message_type()->full_name();
      case FieldDescriptor::TYPE_INT32:
      case FieldDescriptor::TYPE_UINT32:
      case FieldDescriptor::TYPE_ENUM:
        return "varint of 32 bits";
      default:
        return field.type_name();
    }
  }

  static std::string OneofOf(const FieldDescriptor& field) {
    const auto* oneof = field.real_containing_oneof();
    return oneof == nullptr ? "" : oneof->name();
  }

  const DescriptorPool& before_;
  const DescriptorPool& now_;
  std::vector<std::string> found_;
};

FileDescriptorSet Release() {
  std::ifstream file(FOLIO_TEST_DATA_DIR "/wire/folio_v1.binpb", std::ios::binary);
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromIstream(&file));
  return set;
}

std::unique_ptr<DescriptorPool> PoolOf(const FileDescriptorSet& set) {
  auto pool = std::make_unique<DescriptorPool>();
  for (const FileDescriptorProto& file : set.file()) {
    EXPECT_NE(pool->BuildFile(file), nullptr) << file.name();
  }
  return pool;
}

std::vector<std::string> FilesOfFolio(const FileDescriptorSet& set) {
  std::vector<std::string> names;
  for (const FileDescriptorProto& file : set.file()) {
    if (file.package() == "folio.v1") names.push_back(file.name());
  }
  return names;
}

TEST(Wire, ClientsOfTheLastReleaseAreUnderstood) {
  // Linked in by being named.
  ASSERT_NE(GetServerInfoRequest::descriptor(), nullptr);
  ASSERT_NE(Document::descriptor(), nullptr);
  ASSERT_NE(GenerateRequest::descriptor(), nullptr);
  ASSERT_NE(TokenizeRequest::descriptor(), nullptr);
  const FileDescriptorSet release = Release();
  EXPECT_EQ(FilesOfFolio(release).size(), 5u);
  EXPECT_THAT(
      Comparison(*PoolOf(release), *DescriptorPool::generated_pool()).Of(FilesOfFolio(release)),
      IsEmpty());
}

// Go's generator refuses files without one.
TEST(Wire, EachFileNamesItsGoPackage) {
  for (const std::string& name : FilesOfFolio(Release())) {
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
    ASSERT_NE(file, nullptr) << name;
    EXPECT_EQ(file->options().go_package(), "folio/v1;foliov1") << name;
  }
}

// What is generated from proto/ must not lack what other programs expect of google.rpc. Fields by
// number, as googleapis documents them.
TEST(Wire, GoogleRpcIsWhole) {
  const std::map<std::string, std::vector<std::string>> fields = {
      {"Status", {"code", "message", "details"}},
      {"RetryInfo", {"retry_delay"}},
      {"DebugInfo", {"stack_entries", "detail"}},
      {"QuotaFailure", {"violations"}},
      {"ErrorInfo", {"reason", "domain", "metadata"}},
      {"PreconditionFailure", {"violations"}},
      {"BadRequest", {"field_violations"}},
      {"RequestInfo", {"request_id", "serving_data"}},
      {"ResourceInfo", {"resource_type", "resource_name", "owner", "description"}},
      {"Help", {"links"}},
      {"LocalizedMessage", {"locale", "message"}}};
  ASSERT_NE(google::rpc::Status::descriptor(), nullptr);
  ASSERT_NE(google::rpc::ErrorInfo::descriptor(), nullptr);
  for (const auto& [name, names] : fields) {
    const Descriptor* message =
        DescriptorPool::generated_pool()->FindMessageTypeByName("google.rpc." + name);
    ASSERT_NE(message, nullptr) << name;
    for (size_t i = 0; i < names.size(); ++i) {
      const FieldDescriptor* field = message->FindFieldByNumber(static_cast<int>(i) + 1);
      ASSERT_NE(field, nullptr) << name << " " << names[i];
      EXPECT_EQ(field->name(), names[i]) << name;
    }
  }
}

// ---- The comparison finds what breaks ----

FileDescriptorSet Example() {
  FileDescriptorSet set;
  FileDescriptorProto* file = set.add_file();
  file->set_name("example.proto");
  file->set_package("folio.v1");
  file->set_syntax("proto3");
  auto* message = file->add_message_type();
  message->set_name("M");
  const auto add = [&](const char* name, int number, FieldDescriptor::Type type) {
    auto* field = message->add_field();
    field->set_name(name);
    field->set_number(number);
    field->set_type(static_cast<google::protobuf::FieldDescriptorProto::Type>(type));
    field->set_label(google::protobuf::FieldDescriptorProto::LABEL_OPTIONAL);
  };
  add("count", 1, FieldDescriptor::TYPE_UINT32);
  add("text", 2, FieldDescriptor::TYPE_STRING);
  message->add_reserved_name("old");
  auto* range = message->add_reserved_range();
  range->set_start(7);
  range->set_end(8);
  auto* kinds = file->add_enum_type();
  kinds->set_name("Kind");
  kinds->add_value()->set_name("KIND_UNSPECIFIED");
  kinds->mutable_value(0)->set_number(0);
  kinds->add_value()->set_name("KIND_A");
  kinds->mutable_value(1)->set_number(1);
  auto* service = file->add_service();
  service->set_name("S");
  auto* method = service->add_method();
  method->set_name("Call");
  method->set_input_type(".folio.v1.M");
  method->set_output_type(".folio.v1.M");
  return set;
}

std::vector<std::string> After(const std::function<void(FileDescriptorProto*)>& change) {
  const FileDescriptorSet before = Example();
  FileDescriptorSet now = before;
  change(now.mutable_file(0));
  return Comparison(*PoolOf(before), *PoolOf(now)).Of({"example.proto"});
}

TEST(WireComparison, FindsBreakingChanges) {
  using Field = google::protobuf::FieldDescriptorProto;
  struct Case {
    const char* found;
    std::function<void(FileDescriptorProto*)> change;
  };
  const auto message = [](FileDescriptorProto* file) { return file->mutable_message_type(0); };
  const Case cases[] = {
      {"M: the message is gone",
       [](FileDescriptorProto* file) {
         file->mutable_message_type(0)->set_name("N");
         file->mutable_service(0)->mutable_method(0)->set_input_type(".folio.v1.N");
         file->mutable_service(0)->mutable_method(0)->set_output_type(".folio.v1.N");
       }},
      {"M.count: the field is gone",
       [&](FileDescriptorProto* file) { message(file)->mutable_field()->DeleteSubrange(0, 1); }},
      {"M.count: is named size",
       [&](FileDescriptorProto* file) { message(file)->mutable_field(0)->set_name("size"); }},
      {"M.count: was uint32, is string",
       [&](FileDescriptorProto* file) {
         message(file)->mutable_field(0)->set_type(Field::TYPE_STRING);
       }},
      {"M.count: was uint32, is uint64",
       [&](FileDescriptorProto* file) {
         message(file)->mutable_field(0)->set_type(Field::TYPE_UINT64);
       }},
      {"M.text: repeated or not",
       [&](FileDescriptorProto* file) {
         message(file)->mutable_field(1)->set_label(Field::LABEL_REPEATED);
       }},
      {"M.text: the oneof",
       [&](FileDescriptorProto* file) {
         message(file)->add_oneof_decl()->set_name("choice");
         message(file)->mutable_field(1)->set_oneof_index(0);
       }},
      {"M.again: uses a number or name that was reserved",
       [&](FileDescriptorProto* file) {
         message(file)->clear_reserved_range();
         *message(file)->add_field() = message(file)->field(0);
         message(file)->mutable_field(2)->set_name("again");
         message(file)->mutable_field(2)->set_number(7);
       }},
      {"KIND_A: the value is gone",
       [](FileDescriptorProto* file) {
         file->mutable_enum_type(0)->mutable_value()->RemoveLast();
       }},
      {"S: the service is gone", [](FileDescriptorProto* file) { file->clear_service(); }},
      {"S.Call: the method is gone",
       [](FileDescriptorProto* file) { file->mutable_service(0)->clear_method(); }},
      {"S.Call: streaming has changed",
       [](FileDescriptorProto* file) {
         file->mutable_service(0)->mutable_method(0)->set_server_streaming(true);
       }},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(After(c.change), Contains(HasSubstr(c.found))) << c.found;
  }
}

TEST(WireComparison, LetsAdditionsPass) {
  EXPECT_THAT(After([](FileDescriptorProto*) {}), IsEmpty());
  EXPECT_THAT(
      After([](FileDescriptorProto* file) {
        auto* message = file->mutable_message_type(0);
        *message->add_field() = message->field(1);
        message->mutable_field(2)->set_name("more");
        message->mutable_field(2)->set_number(3);
        // A field that went, with its number and name reserved.
        message->mutable_field()->DeleteSubrange(1, 1);
        message->add_reserved_name("text");
        message->add_reserved_range()->set_start(2);
        message->mutable_reserved_range(1)->set_end(3);
        // A number that became an enumeration.
        message->mutable_field(0)->set_type(google::protobuf::FieldDescriptorProto::TYPE_ENUM);
        message->mutable_field(0)->set_type_name(".folio.v1.Kind");
        file->add_message_type()->set_name("New");
      }),
      IsEmpty());
}

}  // namespace
}  // namespace folio::v1
