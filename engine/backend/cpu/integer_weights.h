#pragma once

#include <cstdint>
#include <optional>

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

// Of weights that are integers times `scale` already: these integers, and the scale rounded to
// bf16, so that each weight changes by 2^-9 of itself at most, and not at all where the scale is a
// bf16 number. nullopt where the codec does not have the integers.
std::optional<uint16_t> KeepIntegers(PanelFormat::Codec codec, const float* weights, int count,
                                     float scale, int8_t* integers);

}  // namespace folio::cpu
