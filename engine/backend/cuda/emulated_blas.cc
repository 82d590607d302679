// Products as emulated_runtime.h runs them, in place of blas.cu.
#include <cstdint>
#include <cstring>

#include "engine/backend/cuda/blas.h"

namespace folio::cuda {
namespace {

// Operands as fp32, so that one plain product serves all formats.
float ValueOf(Weight dtype, const void* values, int64_t at) {
  if (dtype == Weight::kF32) return static_cast<const float*>(values)[at];
  const uint16_t bits = static_cast<const uint16_t*>(values)[at];
  if (dtype == Weight::kBf16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t wide = sign | (bits & 0x7fffu) << 13;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value * 0x1p112f;
}

}  // namespace

Error OpenBlas(void** blas) {
  *blas = nullptr;
  return nullptr;
}

void CloseBlas(void*) {}

Error MatMul(Stream stream, void*, const MatMulArgs& args) {
  EnqueueEmulated(static_cast<cudaStream_t>(stream), [=] {
    for (int64_t row = 0; row < args.num_rows; ++row) {
      for (int64_t output = 0; output < args.outputs; ++output) {
        float sum = args.bias == nullptr ? 0.0f : args.bias[output];
        for (int64_t i = 0; i < args.inputs; ++i) {
          sum += ValueOf(args.dtype, args.w, output * args.inputs + i) *
                 ValueOf(args.dtype, args.x, row * args.inputs + i);
        }
        float& to = args.y[row * args.outputs + output];
        to = args.add ? to + sum : sum;
      }
    }
  });
  return nullptr;
}

}  // namespace folio::cuda
