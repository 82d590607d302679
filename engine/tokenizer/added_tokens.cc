#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

namespace folio {

void AddedTokens::Add(const TokenizerJson::AddedToken& token) {
  const auto longer = std::find_if(tokens_.begin(), tokens_.end(), [&](const auto& other) {
    return other.content.size() < token.content.size();
  });
  tokens_.insert(longer, token);
  first_bytes_.set(static_cast<uint8_t>(token.content[0]));
}

const TokenizerJson::AddedToken* AddedTokens::At(std::string_view text) const {
  if (!first_bytes_.test(static_cast<uint8_t>(text[0]))) return nullptr;
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [&](const auto& token) {
    return text.starts_with(token.content);
  });
  return found == tokens_.end() ? nullptr : &*found;
}

}  // namespace folio
