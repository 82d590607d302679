#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace folio::server {

// The sequences of tokens that each word is inside a text: after another character, and with a
// space before it. These are what users of transformers give its NoBadWordsLogitsProcessor, the
// word encoded without and with add_prefix_space. Appended to *sequences, each once. Errors:
// INVALID_ARGUMENT for a word without tokens; those of the tokenizer.
absl::Status TokeniseBadWords(const google::protobuf::RepeatedPtrField<std::string>& words,
                              const Tokenizer& tokenizer, const Interrupt& interrupt,
                              std::vector<std::vector<int32_t>>* sequences);

}  // namespace folio::server
