#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace folio {

// What a Hugging Face tokenizer_config.json says of the tokens around a text, for a tokenizer.json.
struct TokenizerConfig {
  // "": none.
  std::string bos_token;
  std::string eos_token;
  // Whether bos_token comes in front of a text; nullopt: the template of tokenizer.json says what
  // does.
  std::optional<bool> adds_bos;
};

// `what` names the text in messages. What the file leaves out is as in its class of transformers
// 4.57 (tests/reference/special_tokens.py). Errors: INVALID_ARGUMENT naming the field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& what,
                                                     std::string_view text);

}  // namespace folio
