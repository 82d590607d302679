#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/types/request.h"

namespace folio {

// A resolved spec as text: two specs have the same text exactly if they are equal. Of the form
// "long_heads(chunk_size=16,share=none) ntk_aware(factor=4)", with an adapter behind it
// " adapter(NAME@CONTENT)".
std::string AttentionText(const AttentionSpec& spec);

// What was written so, to be resolved again; nullopt if it was not.
std::optional<AttentionSpec> ParseAttentionText(absl::string_view text);

}  // namespace folio
