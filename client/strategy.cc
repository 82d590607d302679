#include "client/strategy.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/method.h"

namespace folio::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string MethodNames(const Descriptor& holder) {
  std::vector<std::string> names;
  for (int i = 0; i < holder.field_count(); ++i) {
    if (v1::FindMethod(holder, holder.field(i)->name()) != nullptr) {
      names.push_back(holder.field(i)->name());
    }
  }
  return absl::StrJoin(names, ", ");
}

std::string ParameterNames(const Descriptor& method) {
  std::vector<std::string> names;
  names.reserve(method.field_count());
  for (int i = 0; i < method.field_count(); ++i) names.push_back(method.field(i)->name());
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

std::optional<v1::ParameterValue> ParseEnum(const EnumDescriptor& type, const std::string& text,
                                            std::string* expected) {
  std::vector<std::string> names;
  names.reserve(type.value_count());
  for (int i = 1; i < type.value_count(); ++i) {
    names.push_back(v1::ShortEnumName(*type.value(i)));
    if (names.back() == text) return text;
  }
  *expected = absl::StrCat("one of ", absl::StrJoin(names, ", "));
  return std::nullopt;
}

// The value that the text of a parameter stands for; else what is expected.
std::optional<v1::ParameterValue> ParseValue(const FieldDescriptor& field, const std::string& text,
                                             std::string* expected) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return ParseEnum(*field.enum_type(), text, expected);
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value = false;
      *expected = "true or false";
      if (absl::SimpleAtob(text, &value)) return value;
      return std::nullopt;
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value = 0;
      *expected = "a whole number";
      if (absl::SimpleAtoi(text, &value)) return int64_t{value};
      return std::nullopt;
    }
    default: {
      double value = 0;
      *expected = "a number";
      if (absl::SimpleAtod(text, &value) && std::isfinite(value)) return value;
      return std::nullopt;
    }
  }
}

absl::Status ParseMethod(const std::string& text, const char* kind, Message* holder) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  v1::MethodFields method;
  method.name = parts.first;
  const Descriptor& descriptor = *holder->GetDescriptor();
  const FieldDescriptor* field = v1::FindMethod(descriptor, method.name);
  if (field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown ", kind, " '", method.name,
                                                   "': choose one of ", MethodNames(descriptor)));
  }
  for (absl::string_view item : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(item, absl::MaxSplits('=', 1));
    const FieldDescriptor* parameter = field->message_type()->FindFieldByName(pair.first);
    if (parameter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(method.name, " has no parameter '", pair.first,
                       "', only: ", ParameterNames(*field->message_type())));
    }
    std::string expected;
    const auto value = ParseValue(*parameter, pair.second, &expected);
    if (!value) {
      return absl::InvalidArgumentError(absl::StrCat(method.name, ".", pair.first, " is '",
                                                     pair.second, "', must be ", expected));
    }
    method.parameters.emplace_back(pair.first, *value);
  }
  v1::WriteMethod(method, holder);
  return absl::OkStatus();
}

struct Show {
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const {
    const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
    return whole ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
};

}  // namespace

absl::StatusOr<v1::AttentionStrategy> ParseStrategy(const std::string& text) {
  v1::AttentionStrategy strategy;
  if (absl::Status status = ParseMethod(text, "strategy", &strategy); !status.ok()) return status;
  return strategy;
}

absl::StatusOr<v1::PositionScheme> ParsePosition(const std::string& text) {
  v1::PositionScheme scheme;
  if (absl::Status status = ParseMethod(text, "position scheme", &scheme); !status.ok()) {
    return status;
  }
  return scheme;
}

std::string MethodName(const Message& method) {
  std::string name = v1::ReadMethod(method).name;
  return name.empty() ? "default" : name;
}

std::string DescribeMethod(const Message& method) {
  const v1::MethodFields fields = v1::ReadMethod(method);
  if (fields.name.empty()) return "default";
  std::vector<std::string> parameters;
  for (const auto& [name, value] : fields.parameters) {
    parameters.push_back(absl::StrCat(name, "=", std::visit(Show(), value)));
  }
  if (parameters.empty()) return fields.name;
  return absl::StrCat(fields.name, ":", absl::StrJoin(parameters, ","));
}

}  // namespace folio::client
