#pragma once

#include "absl/status/statusor.h"
#include "engine/model/family.h"
#include "engine/model/json_fields.h"
#include "engine/types/model_shape.h"
#include "engine/types/position.h"

namespace folio {

// The rotary embedding that a config.json describes: rope_theta (rotary_emb_base),
// partial_rotary_factor (rotary_pct, or rotary_dim in elements), and rope_scaling (or
// rope_parameters) of the types default, linear, dynamic, yarn, llama3 and longrope. Errors:
// INVALID_ARGUMENT naming the key; UNIMPLEMENTED for another type.
absl::StatusOr<RopeModel> ReadRope(const Json& json, const Family& family, const ModelShape& shape);

}  // namespace folio
