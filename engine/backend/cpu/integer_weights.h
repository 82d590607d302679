#pragma once

#include <cstdint>
#include <span>

#include "engine/backend/cpu/panel_format.h"

namespace folio::cpu {

// Integers for the weights of one output in one group of inputs, and their scale:
// weight = integer * scale. Scales are fp16 numbers times a unit of their output, a power of two.

// The scale that such weights want.
//   int8  max |w| / 127
//   int4  w' / -8, w' the first of the largest |w|: the side that needs it has the eighth step
//   given of weights that are integers times this already: the same, where the codec has the
//         integers; 0: they are not known to be
float ScaleFor(PanelFormat::Codec codec, const float* weights, int count, float given);

// The power of two, 2^-126 at least, that takes the largest of the scales of an output to
// [2^15, 2^16); 1 without any. So fp16 numbers are held exactly as they are, and scales of any
// other size within 2^-11 of themselves, but for those below 2^-29 of the largest.
float UnitOf(std::span<const float> scales);

// `scale` as fp16 of the unit.
uint16_t ScaleBits(float scale, float unit);

// The nearest integers, ties to even, of weight / scale: int8 in [-128, 127], int4 in [-8, 7];
// zeros where scale is.
void QuantiseWeights(PanelFormat::Codec codec, const float* weights, int count, float scale,
                     int8_t* integers);

}  // namespace folio::cpu
