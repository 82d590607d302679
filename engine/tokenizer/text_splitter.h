#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace folio {

// Cuts a text into the words that byte-pair encoding works on, by regular expressions: what one
// matches is a word, and so is what lies between two matches; the next one goes over each of these.
// Immutable; safe for concurrent use.
class TextSplitter {
 public:
  // Errors: INVALID_ARGUMENT for a pattern that is no Perl-compatible regular expression.
  static absl::StatusOr<TextSplitter> Create(const std::vector<std::string>& patterns);
  TextSplitter(TextSplitter&&) noexcept;
  ~TextSplitter();

  // Calls `word` for every word in order. REQUIRES: `text` is UTF-8. Errors: INVALID_ARGUMENT when
  // a pattern takes too many steps on this text; the first of `word`, which ends it.
  using Word = std::function<absl::Status(std::string_view)>;
  absl::Status Split(std::string_view text, const Word& word) const;

 private:
  class Pattern;
  TextSplitter();
  absl::Status SplitFrom(size_t pattern, std::string_view text, const Word& word) const;

  std::vector<std::unique_ptr<const Pattern>> patterns_;
};

}  // namespace folio
