#pragma once

#include <cstdint>

#include "engine/backend/cpu/panel_format.h"

namespace folio::cpu {

// Integers for the weights of one output in one group of inputs, and their scale as bf16:
// weight = integer * scale. Integers are the nearest, ties to even, of weight / scale.
//   int8  scale = max |w| / 127, rounded to bf16; integers in [-127, 127]
//   int4  scale = w' / -8, rounded to bf16, w' the first of the largest |w|: the side that needs it
//         has the eighth step; integers in [-8, 7]
// Without a scale (all weights zero) integers are zero.
uint16_t QuantiseWeights(PanelFormat::Codec codec, const float* weights, int count,
                         int8_t* integers);

}  // namespace folio::cpu
