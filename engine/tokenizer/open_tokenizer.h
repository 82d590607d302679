#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace folio {

// The tokenizer of a Hugging Face directory: of tokenizer.json, as in transformers, or of
// tokenizer.model where that file is not there or of another kind. `max_vocab_size` is the model's
// vocab_size: a token id must have an embedding. Errors: NOT_FOUND when there is neither;
// INVALID_ARGUMENT and UNIMPLEMENTED of the files.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model_dir,
                                                         const TokenizerConfig& config,
                                                         int max_vocab_size);

// That of a tokenizer.json; `what` names it in messages. Errors: INVALID_ARGUMENT, UNIMPLEMENTED.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(const std::string& what,
                                                             std::string_view text,
                                                             const TokenizerConfig& config,
                                                             int max_vocab_size);

}  // namespace folio
