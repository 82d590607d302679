#include "server/bad_words.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace folio::server {

absl::Status TokeniseBadWords(const google::protobuf::RepeatedPtrField<std::string>& words,
                              const Tokenizer& tokenizer, const Interrupt& interrupt,
                              std::vector<std::vector<int32_t>>* sequences) {
  for (const std::string& word : words) {
    for (const std::string& text : {word, absl::StrCat(" ", word)}) {
      std::vector<int32_t> tokens;
      FOLIO_RETURN_IF_ERROR(tokenizer.Append(text, interrupt, &tokens, TextStart::kContinued));
      if (tokens.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(Quoted(word), " has no tokens"));
      }
      const bool known = std::ranges::find(*sequences, tokens) != sequences->end();
      if (!known) sequences->push_back(std::move(tokens));
    }
  }
  return absl::OkStatus();
}

}  // namespace folio::server
