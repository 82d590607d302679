#include "engine/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

// Makes room for `more` tokens: by a quarter at least, so that a text in many parts is not copied
// for each of them.
void GrowFor(size_t more, std::vector<int32_t>* tokens) {
  if (tokens->capacity() - tokens->size() >= more) return;
  tokens->reserve(tokens->size() + std::max(more, tokens->size() / 4));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const Interrupt& interrupt) const {
  std::vector<int32_t> ids;
  FOLIO_RETURN_IF_ERROR(Append(text, interrupt, &ids));
  return ids;
}

absl::Status Tokenizer::Append(std::string_view text, const Interrupt& interrupt,
                               std::vector<int32_t>* ids, TextStart start) const {
  if (interrupt) FOLIO_RETURN_IF_ERROR(interrupt());
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", text.size(), " bytes in one piece, limit ", kMaxTextBytes));
  }
  if (const size_t valid_bytes = ValidUtf8Prefix(text); valid_bytes < text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid UTF-8 at byte ", valid_bytes));
  }
  // A text seldom has more tokens than bytes: none is moved. Memory that no token reaches stays
  // untouched.
  GrowFor(text.size() + 1, ids);
  return AppendTokens(text, start, interrupt, ids);
}

}  // namespace folio
