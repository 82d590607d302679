#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace folio {

// Parses untrusted JSON text. `what` names the text in messages ("dir/config.json").
// Errors: INVALID_ARGUMENT for bad syntax or UTF-8 (with the byte offset), for a key given twice
// in one object, for nesting deeper than 32, and when the text is not an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& what, std::string_view text);

}  // namespace folio
