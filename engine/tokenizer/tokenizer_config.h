#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// What a Hugging Face tokenizer_config.json says of the tokens around a text.
struct TokenizerConfig {
  // "": none.
  std::string bos_token;
  std::string eos_token;
  // Whether bos_token comes in front of a text; nullopt: the template of tokenizer.json says what
  // does.
  std::optional<bool> adds_bos;
  // Of a tokenizer.model: a text behind a special token gets the space that one at the beginning
  // gets.
  bool legacy = true;
  // added_tokens_decoder: those that stand for no text.
  std::vector<SpecialToken> special_tokens;
  // A Jinja template: of a list of them, the one named "default". nullopt: there is none.
  std::optional<std::string> chat_template;
};

// `what` names the text in messages. What the file leaves out is as in its class of transformers
// 4.57 (tests/reference/special_tokens.py). Errors: INVALID_ARGUMENT naming the field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& what,
                                                     std::string_view text);

// That of a model directory, whose chat_template.jinja goes before the template in it. What is not
// there is as in an empty file. Errors: as above; those of reading.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir);

}  // namespace folio
