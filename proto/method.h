// Strategies and position schemes as names and values, by reflection: a new message in the oneof
// of AttentionStrategy or PositionScheme is known to server and client without further code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "folio/v1/common.pb.h"

namespace folio::v1 {

// A whole number, a real one, a flag, or the name of an enumeration's value (ShortEnumName).
using ParameterValue = std::variant<int64_t, double, bool, std::string>;

// A method with the parameters that are set, in the order of their fields.
struct MethodFields {
  std::string name;
  std::vector<std::pair<std::string, ParameterValue>> parameters;
};

// What an AttentionStrategy or PositionScheme says; an empty name if nothing is set. A number
// without a name in its enumeration stays a number.
MethodFields ReadMethod(const google::protobuf::Message& holder);

// The reverse. A name without a message of its own becomes NamedMethod, and so does a parameter
// that its message lacks or cannot hold.
void WriteMethod(const MethodFields& method, google::protobuf::Message* holder);

// The field that holds the method `name`, or null.
const google::protobuf::FieldDescriptor* FindMethod(const google::protobuf::Descriptor& holder,
                                                    const std::string& name);

// Name of an enumeration's value without the prefix that its values share, in lower case:
// "quest" for SCORER_QUEST.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace folio::v1
