#include "engine/tokenizer/text_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

// Against patterns that backtrack without end. Those in use take a few steps per character.
constexpr uint32_t kMatchLimit = 10'000'000;

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;

std::string ErrorText(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

class TextSplitter::Pattern {
 public:
  static absl::StatusOr<std::unique_ptr<const Pattern>> Compile(const std::string& regex) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto pattern = std::make_unique<Pattern>();
    pattern->code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                       &offset, nullptr));
    if (pattern->code_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the pattern ", regex, " is wrong at byte ",
                                                     offset, ": ", ErrorText(error)));
    }
    // Without it, matching is slower and the same.
    pcre2_jit_compile(pattern->code_.get(), PCRE2_JIT_COMPLETE);
    pattern->context_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(pattern->context_.get(), kMatchLimit);
    return pattern;
  }

  // Finds the first match that begins at `from` or later and is not empty. begin == end: none.
  absl::Status Find(std::string_view text, size_t from, size_t* begin, size_t* end) const {
    const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    *begin = *end = text.size();
    while (from < text.size()) {
      const int result =
          pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                      PCRE2_NO_UTF_CHECK, data.get(), context_.get());
      if (result == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
      if (result < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the text cannot be cut into words: ", ErrorText(result)));
      }
      const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
      if (found[1] > found[0]) {
        *begin = found[0];
        *end = found[1];
        return absl::OkStatus();
      }
      from = found[0] + (found[0] < text.size() ? Utf8Length(text[found[0]]) : 1);
    }
    return absl::OkStatus();
  }

 private:
  Code code_;
  MatchContext context_;
};

TextSplitter::TextSplitter() = default;
TextSplitter::TextSplitter(TextSplitter&&) noexcept = default;
TextSplitter::~TextSplitter() = default;

absl::StatusOr<TextSplitter> TextSplitter::Create(const std::vector<std::string>& patterns) {
  TextSplitter splitter;
  for (const std::string& regex : patterns) {
    FOLIO_ASSIGN_OR_RETURN(auto pattern, Pattern::Compile(regex));
    splitter.patterns_.push_back(std::move(pattern));
  }
  return splitter;
}

absl::Status TextSplitter::Split(std::string_view text, const Word& word) const {
  return SplitFrom(0, text, word);
}

absl::Status TextSplitter::SplitFrom(size_t pattern, std::string_view text,
                                     const Word& word) const {
  if (text.empty()) return absl::OkStatus();
  if (pattern == patterns_.size()) return word(text);
  size_t at = 0;
  while (at < text.size()) {
    size_t begin = 0;
    size_t end = 0;
    FOLIO_RETURN_IF_ERROR(patterns_[pattern]->Find(text, at, &begin, &end));
    FOLIO_RETURN_IF_ERROR(SplitFrom(pattern + 1, text.substr(at, begin - at), word));
    FOLIO_RETURN_IF_ERROR(SplitFrom(pattern + 1, text.substr(begin, end - begin), word));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace folio
