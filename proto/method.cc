#include "proto/method.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cctype>

namespace folio::v1 {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kNamed[] = "named";

double GetNumber(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field) ? 1 : 0;
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnumValue(message, field);
    default:
      return reflection.GetDouble(message, field);
  }
}

void SetNumber(double value, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field, static_cast<uint32_t>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, value != 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(message, field, static_cast<int>(value));
    default:
      return reflection.SetDouble(message, field, value);
  }
}

void WriteNamed(const MethodFields& method, Message* holder) {
  const FieldDescriptor* field = holder->GetDescriptor()->FindFieldByName(kNamed);
  auto* named = static_cast<NamedMethod*>(holder->GetReflection()->MutableMessage(holder, field));
  named->set_name(method.name);
  for (const auto& [name, value] : method.parameters) (*named->mutable_parameters())[name] = value;
}

}  // namespace

const FieldDescriptor* FindMethod(const Descriptor& holder, const std::string& name) {
  return name == kNamed ? nullptr : holder.FindFieldByName(name);
}

MethodFields ReadMethod(const Message& holder) {
  MethodFields method;
  const FieldDescriptor* field = holder.GetReflection()->GetOneofFieldDescriptor(
      holder, holder.GetDescriptor()->oneof_decl(0));
  if (field == nullptr) return method;
  const Message& message = holder.GetReflection()->GetMessage(holder, field);
  if (field->name() == kNamed) {
    const auto& named = static_cast<const NamedMethod&>(message);
    method.name = named.name();
    method.parameters.assign(named.parameters().begin(), named.parameters().end());
    std::sort(method.parameters.begin(), method.parameters.end());
    return method;
  }
  method.name = field->name();
  const Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (!message.GetReflection()->HasField(message, descriptor.field(i))) continue;
    method.parameters.emplace_back(descriptor.field(i)->name(),
                                   GetNumber(message, descriptor.field(i)));
  }
  return method;
}

void WriteMethod(const MethodFields& method, Message* holder) {
  holder->Clear();
  const FieldDescriptor* field = FindMethod(*holder->GetDescriptor(), method.name);
  if (field == nullptr) return WriteNamed(method, holder);
  Message* message = holder->GetReflection()->MutableMessage(holder, field);
  for (const auto& [name, value] : method.parameters) {
    const FieldDescriptor* parameter = message->GetDescriptor()->FindFieldByName(name);
    if (parameter == nullptr) return WriteNamed(method, holder);
    SetNumber(value, parameter, message);
  }
}

std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value) {
  // The first value is PREFIX_UNSPECIFIED.
  const std::string& first = value.type()->value(0)->name();
  const size_t prefix = first.size() - std::string("UNSPECIFIED").size();
  std::string name = value.name().substr(prefix);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace folio::v1
