#include "engine/tokenizer/inside_text.h"

#include <algorithm>
#include <string>

#include "engine/base/status_macros.h"

namespace folio {

absl::StatusOr<std::vector<int32_t>> EncodeInsideText(std::string_view text,
                                                      const Tokenizer& tokenizer,
                                                      const Interrupt& interrupt) {
  const std::string line_break = "\n";
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> before,
                         tokenizer.Encode(line_break, interrupt));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> both,
                         tokenizer.Encode(line_break + std::string(text), interrupt));
  const auto [rest, end] = std::ranges::mismatch(both, before);
  if (end != before.end()) return tokenizer.Encode(text, interrupt);
  return std::vector<int32_t>(rest, both.end());
}

}  // namespace folio
