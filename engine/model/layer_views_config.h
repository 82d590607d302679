#pragma once

#include "absl/status/status.h"
#include "engine/model/family.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace folio {

// What a config.json of Gemma 2 or 3 says of its layers: layer_types or the family's pattern,
// sliding_window, rope_local_base_freq, query_pre_attn_scalar and the two caps. Does nothing for
// families whose layers are alike. Errors: INVALID_ARGUMENT naming the key; UNIMPLEMENTED for
// attention in both directions.
absl::Status ReadLayerViews(const Json& json, const Family& family, ModelConfig* config);

}  // namespace folio
