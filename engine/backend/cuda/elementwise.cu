// Row-wise kernels: one read and one write of every element.
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

FOLIO_KERNEL void __launch_bounds__(1024)
    RmsNormKernel(const float* x, const float* weight, float eps, int width, float* out) {
  BeginKernel();
  float* scratch = DynamicShared<float>();
  const float* from = x + int64_t{blockIdx.x} * width;
  float squares = 0;
  for (int d = threadIdx.x; d < width; d += blockDim.x) squares += from[d] * from[d];
  const float scale = 1.0f / sqrtf(BlockSum(squares, scratch) / static_cast<float>(width) + eps);
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    out[int64_t{blockIdx.x} * width + d] = from[d] * scale * weight[d];
  }
}

FOLIO_KERNEL void __launch_bounds__(1024)
    LayerNormKernel(const float* x, const float* weight, const float* bias, float eps, int width,
                    float* out) {
  BeginKernel();
  float* scratch = DynamicShared<float>();
  const float* from = x + int64_t{blockIdx.x} * width;
  float sum = 0;
  for (int d = threadIdx.x; d < width; d += blockDim.x) sum += from[d];
  const float mean = BlockSum(sum, scratch) / static_cast<float>(width);
  float squares = 0;
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    squares += (from[d] - mean) * (from[d] - mean);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares, scratch) / static_cast<float>(width) + eps);
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    const float value = (from[d] - mean) * scale * weight[d];
    out[int64_t{blockIdx.x} * width + d] = bias == nullptr ? value : value + bias[d];
  }
}

FOLIO_KERNEL void SwiGluKernel(const float* gate_up, int num_rows, int width, float* out) {
  BeginKernel();
  const int64_t at = ThreadIndex();
  if (at >= int64_t{num_rows} * width) return;
  const int64_t row = at / width;
  const float gate = gate_up[row * 2 * width + at % width];
  const float up = gate_up[row * 2 * width + width + at % width];
  out[at] = gate / (1.0f + expf(-gate)) * up;
}

FOLIO_KERNEL void GeluKernel(bool exact, int64_t count, float* x) {
  BeginKernel();
  const int64_t at = ThreadIndex();
  if (at >= count) return;
  const float v = x[at];
  const float gate =
      exact ? erff(v * 0.70710678f) : tanhf(0.79788456f * (v + 0.044715f * v * v * v));
  x[at] = 0.5f * v * (1.0f + gate);
}

FOLIO_KERNEL void TakeRowsKernel(const float* x, const SampleTask* tasks, int width, float* out) {
  BeginKernel();
  const float* from = x + int64_t{tasks[blockIdx.x].row} * width;
  for (int d = threadIdx.x; d < width; d += blockDim.x) {
    out[int64_t{blockIdx.x} * width + d] = from[d];
  }
}

// Towards the nearest, ties to even. fp16: what is too large becomes infinite.
FOLIO_DEVICE uint16_t ToFp16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits >= 0x7f800000u)
    return static_cast<uint16_t>(sign | (bits > 0x7f800000u ? 0x7e00u : 0x7c00u));
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const float shifted = FromBits(bits) + 0.5f;
    uint32_t sum;
    memcpy(&sum, &shifted, sizeof(sum));
    return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

FOLIO_KERNEL void ConvertKernel(const float* x, int64_t count, bool bf16, uint16_t* out) {
  BeginKernel();
  const int64_t at = ThreadIndex();
  if (at < count) out[at] = bf16 ? ToBf16(x[at]) : ToFp16(x[at]);
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
             float* out) {
  Launch(RmsNormKernel, Rows(num_rows), NormThreads(width), kScratchBytes, stream, x, weight, eps,
         width, out);
}

void LayerNorm(Stream stream, const float* x, const float* weight, const float* bias, float eps,
               int num_rows, int width, float* out) {
  Launch(LayerNormKernel, Rows(num_rows), NormThreads(width), kScratchBytes, stream, x, weight,
         bias, eps, width, out);
}

void SwiGlu(Stream stream, const float* gate_up, int num_rows, int width, float* out) {
  Launch(SwiGluKernel, Elements(int64_t{num_rows} * width), kThreads, 0, stream, gate_up, num_rows,
         width, out);
}

void Gelu(Stream stream, bool exact, int64_t count, float* x) {
  Launch(GeluKernel, Elements(count), kThreads, 0, stream, exact, count, x);
}

void TakeRows(Stream stream, const float* x, const SampleTask* tasks, int num_tasks, int width,
              float* out) {
  Launch(TakeRowsKernel, Rows(num_tasks), kThreads, 0, stream, x, tasks, width, out);
}

void FillRandom(Stream stream, int64_t count, uint64_t seed, float deviation, void* out) {
  Launch(FillRandomKernel, Elements(count), kThreads, 0, stream, count, seed, deviation,
         static_cast<uint16_t*>(out));
}

void Convert(Stream stream, const float* x, int64_t count, Weight dtype, void* out) {
  Launch(ConvertKernel, Elements(count), kThreads, 0, stream, x, count, dtype == Weight::kBf16,
         static_cast<uint16_t*>(out));
}

}  // namespace folio::cuda
