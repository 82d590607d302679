#pragma once

#include "absl/status/status.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/loaded_model.h"

namespace folio {

// Sets the tokenizer of the model, and what it makes of conversations (EngineInfo::chat). Without
// `tokenizer_required` a directory may have none. REQUIRES: the config is there. Errors: those of
// the files.
absl::Status OpenModelText(const EngineOptions& options, bool tokenizer_required,
                           LoadedModel* model);

}  // namespace folio
