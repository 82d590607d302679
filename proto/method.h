// Strategies and position schemes as names and numbers, by reflection: a new message in the oneof
// of AttentionStrategy or PositionScheme is known to server and client without further code.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "folio/v1/common.pb.h"

namespace folio::v1 {

// A method with the parameters that are set, in the order of their fields. Booleans are 0 and 1,
// enumerations their numbers.
struct MethodFields {
  std::string name;
  std::vector<std::pair<std::string, double>> parameters;
};

// What an AttentionStrategy or PositionScheme says; an empty name if nothing is set.
MethodFields ReadMethod(const google::protobuf::Message& holder);

// The reverse. A name without a message of its own becomes NamedMethod, and so does a parameter
// that its message lacks.
void WriteMethod(const MethodFields& method, google::protobuf::Message* holder);

// The field that holds the method `name`, or null.
const google::protobuf::FieldDescriptor* FindMethod(const google::protobuf::Descriptor& holder,
                                                    const std::string& name);

// Name of an enumeration's value without the prefix that its values share, in lower case:
// "quest" for SCORER_QUEST.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace folio::v1
