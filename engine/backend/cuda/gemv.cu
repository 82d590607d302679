// Products of a weight matrix with few rows: every weight is read once, 16 bytes per lane and load,
// eight loads under way; a warp sums two outputs of all rows. Activations come as fp32 from the
// first-level cache and are rounded to the format of the weights, as products of more rows have
// them: what a row is does not jump with the size of its batch.
#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/tensor_core.h"

namespace folio::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kOutputs = 2;  // of a warp
constexpr int kUnroll = 4;
constexpr int kPerLoad = 8;

struct GemvArgs {
  const uint16_t* w;
  const float* x;
  int inputs;
  int outputs;
  const float* bias;  // null: none
  bool add;
  float* y;
};

template <Weight kDtype>
FOLIO_DEVICE void Unpack(uint32_t word, float* to) {
  if (kDtype == Weight::kBf16) {
    to[0] = FromBf16(word & 0xffffu);
    to[1] = FromBits(word & 0xffff0000u);
  } else {
    to[0] = FromFp16(static_cast<uint16_t>(word & 0xffffu));
    to[1] = FromFp16(static_cast<uint16_t>(word >> 16));
  }
}

template <Weight kDtype>
FOLIO_DEVICE void LoadRounded(const float* x, float* to) {
#pragma unroll
  for (int n = 0; n < kPerLoad; n += 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + n);
    if (kDtype == Weight::kBf16) {
      Unpack<kDtype>(PackBf16(v.x, v.y), to + n);
      Unpack<kDtype>(PackBf16(v.z, v.w), to + n + 2);
    } else {
      Unpack<kDtype>(PackFp16(v.x, v.y), to + n);
      Unpack<kDtype>(PackFp16(v.z, v.w), to + n + 2);
    }
  }
}

template <Weight kDtype, int kRows>
FOLIO_KERNEL void __launch_bounds__(kWarps* kWarp) GemvKernel(const __grid_constant__ GemvArgs a) {
  AllowNext();
  const int lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kOutputs;
  float sums[kOutputs][kRows] = {};
  for (int begin = lane * kPerLoad; begin < a.inputs; begin += kWarp * kPerLoad * kUnroll) {
    uint4 words[kUnroll][kOutputs];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = begin + u * kWarp * kPerLoad;
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        words[u][n] = {0, 0, 0, 0};
        if (k < a.inputs && first + n < a.outputs) {
          words[u][n] = *reinterpret_cast<const uint4*>(a.w + int64_t{first + n} * a.inputs + k);
        }
      }
    }
    // The first weights are on their way before the activations are there. That is safe: weights
    // are written when a model is loaded and never again, and the copy of the step's tables, for
    // which launches do not overlap, lies between that and any product.
    WaitForEarlier();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = begin + u * kWarp * kPerLoad;
      if (k >= a.inputs) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float x[kPerLoad];
        LoadRounded<kDtype>(a.x + int64_t{row} * a.inputs + k, x);
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) {
          float w[kPerLoad];
          Unpack<kDtype>(words[u][n].x, w);
          Unpack<kDtype>(words[u][n].y, w + 2);
          Unpack<kDtype>(words[u][n].z, w + 4);
          Unpack<kDtype>(words[u][n].w, w + 6);
          sums[n][row] += w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3] + w[4] * x[4] +
                          w[5] * x[5] + w[6] * x[6] + w[7] * x[7];
        }
      }
    }
  }
  WaitForEarlier();
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float sum = WarpSum(sums[n][row]);
      if (lane != 0 || first + n >= a.outputs) continue;
      if (a.bias != nullptr) sum += a.bias[first + n];
      float* to = a.y + int64_t{row} * a.outputs + first + n;
      *to = a.add ? *to + sum : sum;
    }
  }
}

template <Weight kDtype>
void LaunchGemv(Stream stream, int num_rows, const GemvArgs& args) {
  constexpr int kPerBlock = kWarps * kOutputs;
  const dim3 grid = {static_cast<unsigned>((args.outputs + kPerBlock - 1) / kPerBlock), 1, 1};
  const auto launch = [&](void (*kernel)(GemvArgs)) {
    Launch(kernel, grid, kWarps * kWarp, 0, stream, args);
  };
  switch (num_rows) {
    case 1:
      return launch(GemvKernel<kDtype, 1>);
    case 2:
      return launch(GemvKernel<kDtype, 2>);
    case 3:
      return launch(GemvKernel<kDtype, 3>);
    default:
      return launch(GemvKernel<kDtype, 4>);
  }
}

}  // namespace

bool GemvTakes(Weight dtype, int num_rows, int inputs) {
  return dtype != Weight::kF32 && num_rows <= 4 && inputs % kPerLoad == 0;
}

void Gemv(Stream stream, Weight dtype, const void* w, const float* x, int num_rows, int inputs,
          int outputs, const float* bias, bool add, float* y) {
  const GemvArgs args = {static_cast<const uint16_t*>(w), x, inputs, outputs, bias, add, y};
  if (dtype == Weight::kBf16) {
    LaunchGemv<Weight::kBf16>(stream, num_rows, args);
  } else {
    LaunchGemv<Weight::kF16>(stream, num_rows, args);
  }
}

}  // namespace folio::cuda
