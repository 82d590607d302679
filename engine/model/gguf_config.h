#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf_file.h"

namespace folio {

// The config.json that the model of a GGUF file would have as a Hugging Face directory. Known are
// the architectures llama (of Llama, Mistral, TinyLlama) and qwen2. Errors: INVALID_ARGUMENT names
// the key of the file; UNIMPLEMENTED for another architecture, and what of it Folio does not run.
absl::StatusOr<std::string> GgufConfigJson(const GgufFile& file);

}  // namespace folio
