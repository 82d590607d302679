#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace folio {

// Tokens of a tokenizer.json that are found in a text before it is cut into words: the longest that
// begins at a place. Immutable once filled; safe for concurrent use.
class AddedTokens {
 public:
  void Add(const TokenizerJson::AddedToken& token);

  // Appends the ids of these tokens in `text`, and calls `between` for the text around them, which
  // may be empty and returns a status. Errors: its.
  template <typename Between>
  absl::Status Split(std::string_view text, std::vector<int32_t>* ids, Between between) const {
    if (tokens_.empty()) return between(text);
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const TokenizerJson::AddedToken* found = At(text.substr(at));
      if (found == nullptr) {
        ++at;
        continue;
      }
      FOLIO_RETURN_IF_ERROR(between(text.substr(begin, at - begin)));
      ids->push_back(found->id);
      begin = at += found->content.size();
    }
    return between(text.substr(begin));
  }

 private:
  // nullptr when `text` begins with none.
  const TokenizerJson::AddedToken* At(std::string_view text) const;

  std::vector<TokenizerJson::AddedToken> tokens_;  // longer ones first
  std::bitset<256> first_bytes_;
};

}  // namespace folio
