#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "engine/model/model_config.h"

namespace folio {

// Reads the text of a generation_config.json: its end tokens are added to those of config.json, and
// what it says of sampling replaces `config->sampling`. Keys that are absent have the defaults of
// the Hugging Face class: do_sample false, which is greedy; temperature 1, top_k 50, top_p 1.
// Errors: INVALID_ARGUMENT names the key, its value and what is allowed.
absl::Status AddGenerationConfig(std::string_view json, ModelConfig* config);

}  // namespace folio
