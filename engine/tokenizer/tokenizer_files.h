#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// Texts of a tokenizer's files by the names that Hugging Face has for them: tokenizer_config.json,
// and tokenizer.model or tokenizer.json.
using TokenizerFiles = std::map<std::string, std::string>;

// The tokenizer of these files. `what` names them in messages. Errors: those of
// SentencePieceTokenizer and TokenizerFromJson.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizerFiles(const std::string& what,
                                                              const TokenizerFiles& files,
                                                              int max_vocab_size);

}  // namespace folio
