#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// Tokens of a text that follows another one, as a piece of an answer does: without the space that
// some tokenizers put in front of every text. They are those behind a line break, which tokenizers
// do not join with a letter, a digit or a space after it; where one does join them, those of
// Encode. Errors: those of Encode.
absl::StatusOr<std::vector<int32_t>> EncodeInsideText(std::string_view text,
                                                      const Tokenizer& tokenizer,
                                                      const Interrupt& interrupt = nullptr);

}  // namespace folio
