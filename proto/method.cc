#include "proto/method.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>

namespace folio::v1 {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kNamed[] = "named";

// Of anything but a name.
double AsNumber(const ParameterValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return static_cast<double>(std::get<int64_t>(value));
}

ParameterValue EnumValue(const EnumDescriptor& type, int number) {
  const auto* known = type.FindValueByNumber(number);
  if (known == nullptr) return int64_t{number};
  return ShortEnumName(*known);
}

ParameterValue GetValue(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return int64_t{reflection.GetUInt32(message, field)};
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumValue(*field->enum_type(), reflection.GetEnumValue(message, field));
    default:
      return reflection.GetDouble(message, field);
  }
}

// False where the field cannot hold the value.
bool SetValue(const ParameterValue& value, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const auto* whole = std::get_if<int64_t>(&value);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      if (whole == nullptr || *whole < 0 || *whole > UINT32_MAX) return false;
      reflection.SetUInt32(message, field, static_cast<uint32_t>(*whole));
      return true;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!std::holds_alternative<bool>(value)) return false;
      reflection.SetBool(message, field, std::get<bool>(value));
      return true;
    case FieldDescriptor::CPPTYPE_ENUM:
      if (!std::holds_alternative<std::string>(value)) return false;
      for (int i = 0; i < field->enum_type()->value_count(); ++i) {
        const auto* known = field->enum_type()->value(i);
        if (ShortEnumName(*known) != std::get<std::string>(value)) continue;
        reflection.SetEnum(message, field, known);
        return true;
      }
      return false;
    default:
      if (whole == nullptr && !std::holds_alternative<double>(value)) return false;
      reflection.SetDouble(message, field,
                           whole ? static_cast<double>(*whole) : std::get<double>(value));
      return true;
  }
}

void WriteNamed(const MethodFields& method, Message* holder) {
  holder->Clear();
  const FieldDescriptor* field = holder->GetDescriptor()->FindFieldByName(kNamed);
  auto* named = static_cast<NamedMethod*>(holder->GetReflection()->MutableMessage(holder, field));
  named->set_name(method.name);
  for (const auto& [name, value] : method.parameters) {
    if (const auto* choice = std::get_if<std::string>(&value)) {
      (*named->mutable_choices())[name] = *choice;
    } else {
      (*named->mutable_parameters())[name] = AsNumber(value);
    }
  }
}

// A number of a NamedMethod is read as the field of that name would be, where the method has a
// message: enumerations by their number.
ParameterValue NumberOf(const FieldDescriptor* method, const std::string& name, double number) {
  const FieldDescriptor* field =
      method == nullptr ? nullptr : method->message_type()->FindFieldByName(name);
  const bool is_enum = field != nullptr && field->enum_type() != nullptr;
  if (is_enum && std::abs(number) <= INT32_MAX && number == std::floor(number)) {
    return EnumValue(*field->enum_type(), static_cast<int>(number));
  }
  return number;
}

MethodFields ReadNamed(const NamedMethod& named, const Descriptor& holder) {
  MethodFields method;
  method.name = named.name();
  const FieldDescriptor* of_name = FindMethod(holder, method.name);
  for (const auto& [name, number] : named.parameters()) {
    method.parameters.emplace_back(name, NumberOf(of_name, name, number));
  }
  for (const auto& [name, choice] : named.choices()) method.parameters.emplace_back(name, choice);
  std::sort(method.parameters.begin(), method.parameters.end());
  return method;
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
    return ReadNamed(static_cast<const NamedMethod&>(message), *holder.GetDescriptor());
  }
  method.name = field->name();
  const Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (!message.GetReflection()->HasField(message, descriptor.field(i))) continue;
    method.parameters.emplace_back(descriptor.field(i)->name(),
                                   GetValue(message, descriptor.field(i)));
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
    if (parameter == nullptr || !SetValue(value, parameter, message)) {
      return WriteNamed(method, holder);
    }
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
