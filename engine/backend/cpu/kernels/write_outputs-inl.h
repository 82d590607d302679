// Where matrix products put their sums.
#pragma once

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Up to 16 outputs from `first` on.
FOLIO_INLINE void WriteOutputs(const MatMulArgs& args, int64_t row, int64_t first, Vec sums) {
  float* y = args.y + row * args.num_outputs + first;
  const float* bias = args.bias != nullptr ? args.bias + first : nullptr;
  if (first + 16 <= args.num_outputs) {
    if (bias != nullptr) sums = sums + Load(bias);
    Store(y, args.add ? Load(y) + sums : sums);
    return;
  }
  float values[16];
  Store(values, sums);
  for (int64_t i = 0; first + i < args.num_outputs; ++i) {
    const float value = bias != nullptr ? values[i] + bias[i] : values[i];
    y[i] = args.add ? y[i] + value : value;
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
