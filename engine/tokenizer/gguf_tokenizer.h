#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf_file.h"
#include "engine/tokenizer/tokenizer_files.h"

namespace folio {

// What a GGUF file says of its tokenizer, as the files of a Hugging Face directory:
// tokenizer_config.json (with the chat template), and tokenizer.model for the kind "llama" (pieces
// with scores) or tokenizer.json for the kind "gpt2" (BPE over bytes). Errors: INVALID_ARGUMENT
// names the key; UNIMPLEMENTED for another kind of tokenizer or pre-tokenizer.
absl::StatusOr<TokenizerFiles> GgufTokenizerFiles(const GgufFile& file);

}  // namespace folio
