// Kernels that read and write every element once.
#include <algorithm>

#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 128;

FOLIO_DEVICE float WeightAt(Weight dtype, const void* weights, int64_t at) {
  if (dtype == Weight::kF32) return static_cast<const float*>(weights)[at];
  const uint16_t bits = static_cast<const uint16_t*>(weights)[at];
  return dtype == Weight::kBf16 ? FromBf16(bits) : FromFp16(bits);
}

FOLIO_DEVICE int64_t ThreadIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

FOLIO_KERNEL void EmbedKernel(Weight dtype, const void* table, const int* ids,
                              const SampleResult* drawn, int width, float* out) {
  BeginKernel();
  const int id = ids[blockIdx.x];
  const int64_t from = int64_t{id >= 0 ? id : drawn[-1 - id].token} * width;
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    out[int64_t{blockIdx.x} * width + d] = WeightAt(dtype, table, from + d);
  }
}

FOLIO_DEVICE uint16_t Rounded(const Twin& twin, float value) {
  return twin.bf16 ? ToBf16(value) : ToFp16(value);
}

// kN neighbours: read and written at once where that is 4.
template <int kN>
struct Group {
  float v[kN];

  FOLIO_DEVICE static Group Load(const float* from) {
    if constexpr (kN == 4) {
      const float4 x = *reinterpret_cast<const float4*>(from);
      return {{x.x, x.y, x.z, x.w}};
    } else {
      return {{*from}};
    }
  }
  // At `at` of out, and of the twin.
  FOLIO_DEVICE void Store(float* out, const Twin& twin, int64_t at) const {
    if constexpr (kN == 4) {
      *reinterpret_cast<float4*>(out + at) = {v[0], v[1], v[2], v[3]};
    } else {
      out[at] = v[0];
    }
    StoreTwin(twin, at);
  }
  FOLIO_DEVICE void StoreTwin(const Twin& twin, int64_t at) const {
    if (twin.data == nullptr) return;
    uint16_t rounded[kN];
#pragma unroll
    for (int n = 0; n < kN; ++n) rounded[n] = Rounded(twin, v[n]);
    if constexpr (kN == 4) {
      *reinterpret_cast<uint2*>(twin.data + at) = {rounded[0] | uint32_t{rounded[1]} << 16,
                                                   rounded[2] | uint32_t{rounded[3]} << 16};
    } else {
      twin.data[at] = rounded[0];
    }
  }
  template <typename F>
  FOLIO_DEVICE void ForEach(F f) {
#pragma unroll
    for (int n = 0; n < kN; ++n) f(n, v[n]);
  }
};

template <int kN>
FOLIO_KERNEL void __launch_bounds__(1024)
    RmsNormKernel(const float* x, const float* weight, float eps, int width, float* out,
                  Twin twin) {
  BeginKernel();
  float* scratch = DynamicShared<float>();
  const int64_t row = int64_t{blockIdx.x} * width;
  float squares = 0;
  for (int d = kN * threadIdx.x; d < width; d += kN * blockDim.x) {
    Group<kN>::Load(x + row + d).ForEach([&](int, float& value) { squares += value * value; });
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares, scratch) / static_cast<float>(width) + eps);
  for (int d = kN * threadIdx.x; d < width; d += kN * blockDim.x) {
    Group<kN> group = Group<kN>::Load(x + row + d);
    group.ForEach([&](int n, float& value) { value *= scale * weight[d + n]; });
    group.Store(out, twin, row + d);
  }
}

// blockIdx.x is row * num_heads + head; a head is shorter than a block has threads, or as long.
FOLIO_KERNEL void NormHeadsKernel(const float* weight, float eps, int num_heads, int width,
                                  int64_t row_stride, float* x) {
  BeginKernel();
  float* scratch = DynamicShared<float>();
  const int row = static_cast<int>(blockIdx.x) / num_heads;
  const int head = static_cast<int>(blockIdx.x) % num_heads;
  const int d = threadIdx.x;
  float* const at = x + row * row_stride + int64_t{head} * width + d;
  const float value = d < width ? *at : 0.0f;
  const float squares = BlockSum(value * value, scratch);
  if (d < width) *at = value / sqrtf(squares / static_cast<float>(width) + eps) * weight[d];
}

template <int kN>
FOLIO_KERNEL void __launch_bounds__(1024)
    LayerNormKernel(const float* x, const float* weight, const float* bias, float eps, int width,
                    float* out, Twin twin) {
  BeginKernel();
  float* scratch = DynamicShared<float>();
  const int64_t row = int64_t{blockIdx.x} * width;
  float sum = 0;
  for (int d = kN * threadIdx.x; d < width; d += kN * blockDim.x) {
    Group<kN>::Load(x + row + d).ForEach([&](int, float& value) { sum += value; });
  }
  const float mean = BlockSum(sum, scratch) / static_cast<float>(width);
  float squares = 0;
  for (int d = kN * threadIdx.x; d < width; d += kN * blockDim.x) {
    Group<kN>::Load(x + row + d).ForEach([&](int, float& value) {
      squares += (value - mean) * (value - mean);
    });
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares, scratch) / static_cast<float>(width) + eps);
  for (int d = kN * threadIdx.x; d < width; d += kN * blockDim.x) {
    Group<kN> group = Group<kN>::Load(x + row + d);
    group.ForEach([&](int n, float& value) {
      value = (value - mean) * scale * weight[d + n] + (bias == nullptr ? 0.0f : bias[d + n]);
    });
    group.Store(out, twin, row + d);
  }
}

// blockIdx.x is the row, of which there may be more than kMaxGridYZ.
template <int kN>
FOLIO_KERNEL void SwiGluKernel(const float* gate_up, int width, float* out, Twin twin) {
  BeginKernel();
  const int d = kN * static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (d >= width) return;
  const int64_t row = blockIdx.x;
  Group<kN> group = Group<kN>::Load(gate_up + row * 2 * width + d);
  const Group<kN> up = Group<kN>::Load(gate_up + row * 2 * width + width + d);
  group.ForEach([&](int n, float& gate) { gate = gate / (1.0f + expf(-gate)) * up.v[n]; });
  group.Store(out, twin, row * width + d);
}

template <int kN>
FOLIO_KERNEL void GeluKernel(bool exact, int64_t count, float* x, Twin twin) {
  BeginKernel();
  const int64_t at = kN * ThreadIndex();
  if (at >= count) return;
  Group<kN> group = Group<kN>::Load(x + at);
  group.ForEach([&](int, float& v) {
    const float gate =
        exact ? erff(v * 0.70710678f) : tanhf(0.79788456f * (v + 0.044715f * v * v * v));
    v *= 0.5f * (1.0f + gate);
  });
  group.Store(x, twin, at);
}

FOLIO_KERNEL void TakeRowsKernel(const float* x, const SampleTask* tasks, int width, float* out) {
  BeginKernel();
  const float* from = x + int64_t{tasks[blockIdx.x].row} * width;
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    out[int64_t{blockIdx.x} * width + d] = from[d];
  }
}

template <int kN>
FOLIO_KERNEL void ConvertKernel(const float* x, int64_t count, Twin out) {
  BeginKernel();
  const int64_t at = kN * ThreadIndex();
  if (at < count) Group<kN>::Load(x + at).StoreTwin(out, at);
}

FOLIO_KERNEL void FillRandomKernel(int64_t count, uint64_t seed, float deviation, uint16_t* out) {
  BeginKernel();
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const uint64_t z = SplitMix64(seed * 0xd1b54a32d192ed03u + (i + 1) * 0x9e3779b97f4a7c15u);
  const float uniform = static_cast<float>(z >> 40) / 8388608.0f - 1.0f;
  out[i] = ToBf16(1.7320508f * deviation * uniform);
}

dim3 Rows(int num_rows) { return {static_cast<unsigned>(num_rows), 1, 1}; }
dim3 Elements(int64_t count) {
  return {static_cast<unsigned>((count + kThreads - 1) / kThreads), 1, 1};
}
// Calls launch<kN>() for rows (or a whole) of so many elements.
template <typename F>
void InGroups(int64_t width, F launch) {
  if (width % 4 == 0) {
    launch.template operator()<4>();
  } else {
    launch.template operator()<1>();
  }
}
// A row of few must not wait for one small block.
int NormThreads(int width) {
  return std::clamp((width / 4 + kWarp - 1) / kWarp * kWarp, kWarp, 1024);
}
constexpr int kScratchBytes = kWarp * static_cast<int>(sizeof(float));

}  // namespace

void Embed(Stream stream, Weight dtype, const void* table, const int* ids,
           const SampleResult* drawn, int num_rows, int width, float* out) {
  Launch(EmbedKernel, Rows(num_rows), kThreads, 0, stream, dtype, table, ids, drawn, width, out);
}

void RmsNorm(Stream stream, const float* x, const float* weight, float eps, int num_rows, int width,
             float* out, Twin twin) {
  InGroups(width, [&]<int kN>() {
    Launch(RmsNormKernel<kN>, Rows(num_rows), NormThreads(width), kScratchBytes, stream, x, weight,
           eps, width, out, twin);
  });
}

void NormHeads(Stream stream, const float* weight, float eps, int num_rows, int num_heads,
               int width, int64_t row_stride, float* x) {
  const int threads = (width + kWarp - 1) / kWarp * kWarp;
  Launch(NormHeadsKernel, Rows(num_rows * num_heads), threads, kScratchBytes, stream, weight, eps,
         num_heads, width, row_stride, x);
}

void LayerNorm(Stream stream, const float* x, const float* weight, const float* bias, float eps,
               int num_rows, int width, float* out, Twin twin) {
  InGroups(width, [&]<int kN>() {
    Launch(LayerNormKernel<kN>, Rows(num_rows), NormThreads(width), kScratchBytes, stream, x,
           weight, bias, eps, width, out, twin);
  });
}

void SwiGlu(Stream stream, const float* gate_up, int num_rows, int width, float* out, Twin twin) {
  InGroups(width, [&]<int kN>() {
    const dim3 grid = {static_cast<unsigned>(num_rows), Elements(width / kN).x, 1};
    Launch(SwiGluKernel<kN>, grid, kThreads, 0, stream, gate_up, width, out, twin);
  });
}

void Gelu(Stream stream, bool exact, int64_t count, float* x, Twin twin) {
  InGroups(count, [&]<int kN>() {
    Launch(GeluKernel<kN>, Elements(count / kN), kThreads, 0, stream, exact, count, x, twin);
  });
}

void TakeRows(Stream stream, const float* x, const SampleTask* tasks, int num_tasks, int width,
              float* out) {
  Launch(TakeRowsKernel, Rows(num_tasks), kThreads, 0, stream, x, tasks, width, out);
}

void FillRandom(Stream stream, int64_t count, uint64_t seed, float deviation, void* out) {
  Launch(FillRandomKernel, Elements(count), kThreads, 0, stream, count, seed, deviation,
         static_cast<uint16_t*>(out));
}

void Convert(Stream stream, const float* x, int64_t count, Twin out) {
  InGroups(count, [&]<int kN>() {
    Launch(ConvertKernel<kN>, Elements(count / kN), kThreads, 0, stream, x, count, out);
  });
}

}  // namespace folio::cuda
