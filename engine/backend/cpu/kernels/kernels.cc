#include "engine/backend/cpu/kernels/kernels.h"

#include <algorithm>
#include <limits>

namespace folio::cpu {

void InitState(float* state, int dim) {
  std::fill(state, state + dim, 0.0f);
  state[dim] = -std::numeric_limits<float>::infinity();
  state[dim + 1] = 0.0f;
}

const Kernels& KernelsFor(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::Table();
    case Isa::kAvx512:
      return avx512::Table();
    case Isa::kAvx512Vnni:
      return avx512_vnni::Table();
    case Isa::kAvx512Bf16:
      return avx512_bf16::Table();
    case Isa::kAmx:
      return amx::Table();
#endif
    default:
      return portable::Table();
  }
}

}  // namespace folio::cpu
