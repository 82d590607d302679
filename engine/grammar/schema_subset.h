#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace folio {

// Checks that a JSON schema (draft 2020-12) keeps to the part of the language that answers can be
// held to, docs/constraints.md. Returns it on one line, its keys in the order that they came in.
// Errors: INVALID_ARGUMENT, naming the place as a JSON pointer and the keyword: no JSON, a key that
// is given twice, nesting deeper than 32, more than 4096 schemas, or what is not in that part.
absl::StatusOr<std::string> CheckSchema(std::string_view text);

}  // namespace folio
