#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/piece.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace folio {

// Token ids around a text, -1: none.
struct TextEnds {
  int32_t bos_id = -1;
  int32_t eos_id = -1;
};

// Errors: INVALID_ARGUMENT when an id of the file is not below `max_vocab_size`, or when it lacks
// the token that `config` puts in front of a text.
absl::StatusOr<TextEnds> CheckIds(const TokenizerJson& file, const TokenizerConfig& config,
                                  int max_vocab_size);

// The vocabulary in id order; `make` gives the piece of a name of the model. Added tokens that are
// special stand for no text, and so do ids that the file leaves out.
std::vector<Piece> PiecesOf(const TokenizerJson& file,
                            absl::FunctionRef<Piece(const std::string&)> make);

std::vector<SpecialToken> SpecialTokensOf(const TokenizerJson& file);

}  // namespace folio
