// Attention strategies and position schemes as text. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "folio/v1/common.pb.h"

namespace folio::client {

// A method with parameters: "long_heads", "long_heads:chunk_size=16,scorer=quest",
// "yarn:factor=8". Parameters are the fields of the method's message; enumerations by name in lower
// case, booleans as true or false. Errors: INVALID_ARGUMENT for an unknown name, parameter or
// value, listing the known ones.
absl::StatusOr<v1::AttentionStrategy> ParseStrategy(const std::string& text);
absl::StatusOr<v1::PositionScheme> ParsePosition(const std::string& text);

// The name of a method; "default" if none is set.
std::string MethodName(const google::protobuf::Message& method);

// Name and the parameters that are set, as Parse reads it. The order of the parameters is fixed, so
// that equal methods give equal text.
std::string DescribeMethod(const google::protobuf::Message& method);

}  // namespace folio::client
