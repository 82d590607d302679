// Keys and values into their pages, and the queries that wait for their chunk to complete.
#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 64;

// One key and value of a page. Where it is turned, `turn` says by what.
template <Cache kCache>
FOLIO_DEVICE void WriteToken(const Geometry& g, int frame, int layer, int kv_head, int token,
                             const float* key, const float* value, const float* turn) {
  auto* keys = const_cast<unsigned char*>(g.Keys(frame, layer, kv_head));
  unsigned char* values = keys + g.key_bytes;
  const int half = g.half();
  for (int m = threadIdx.x; m < half; m += blockDim.x) {
    Pair p = {key[m], key[m + half]};
    if (g.paired_keys) {
      SetKey<kCache>(keys, g.key_dim, token, m, fmaxf(0.0f, (p.x + p.y) / 2));
      continue;
    }
    if (turn != nullptr) p = Turn(p, turn, m, half, 1.0f);
    SetKey<kCache>(keys, g.key_dim, token, m, p.x);
    SetKey<kCache>(keys, g.key_dim, token, m + half, p.y);
  }
  for (int d = threadIdx.x; d < g.head_dim; d += blockDim.x) {
    SetValue<kCache>(values, g.dim, token, d, value[d]);
  }
}

template <Cache kCache>
FOLIO_KERNEL void StoreKernel(const __grid_constant__ Geometry g, const __grid_constant__ Step step,
                              int layer, const float* qkv) {
  BeginKernel();
  const int row = blockIdx.x;
  const int kv_head = blockIdx.y;
  if (step.slice_of_row[row] < 0) return;
  const Slice& s = step.slices[step.slice_of_row[row]];
  const int64_t i = s.first_position + row - s.row_begin;
  const int64_t page = i / g.page_tokens;
  const int token = static_cast<int>(i % g.page_tokens);
  const float* key = QueryOf(g, qkv, row, g.num_heads + kv_head);
  const float* value = key + int64_t{g.num_kv_heads} * g.head_dim;
  const float* turn = s.rope.positions.At(token, g.half());
  WriteToken<kCache>(g, s.pages[page - s.first_page], layer, kv_head, token, key, value,
                     s.raw_keys ? nullptr : turn);
  if (i < s.num_sinks) {
    WriteToken<kCache>(g, s.sinks[page], layer, kv_head, token, key, value,
                       s.sinks_rotated ? turn : nullptr);
  }
}

template <Cache kCache>
FOLIO_KERNEL void PendingKernel(const __grid_constant__ Geometry g,
                                const __grid_constant__ Step step, int layer, const float* qkv) {
  BeginKernel();
  const int row = blockIdx.x;
  const int head = blockIdx.y;
  if (step.slice_of_row[row] < 0) return;
  const Slice& s = step.slices[step.slice_of_row[row]];
  if (s.pending == nullptr) return;
  const int64_t w = s.selection.chunk_tokens;
  const int64_t i = s.first_position + row - s.row_begin;
  const int64_t end = s.first_position + s.num_rows;
  if (i < end / w * w) return;  // its chunk is complete
  const int64_t offset = i % w;
  const float* q = QueryOf(g, qkv, row, head);
  const float* turn = s.summary_rope.positions.At(offset, g.half());
  unsigned char* to = g.PendingRow(s.pending, offset, layer, head);
  for (int m = threadIdx.x; m < g.half(); m += blockDim.x) {
    const Pair p = Turn({q[m], q[m + g.half()]}, turn, m, g.half(), 1.0f);
    if (kCache == Cache::kBf16) {
      reinterpret_cast<uint16_t*>(to)[m] = ToBf16(p.x);
      reinterpret_cast<uint16_t*>(to)[m + g.half()] = ToBf16(p.y);
    } else {
      reinterpret_cast<float*>(to)[m] = p.x;
      reinterpret_cast<float*>(to)[m + g.half()] = p.y;
    }
  }
}

dim3 RowsByHeads(const Step& step, int heads) {
  return {static_cast<unsigned>(step.num_rows), static_cast<unsigned>(heads), 1};
}

}  // namespace

void StoreKv(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv) {
  Launch(g.cache == Cache::kBf16 ? StoreKernel<Cache::kBf16> : StoreKernel<Cache::kF32>,
         RowsByHeads(step, g.num_kv_heads), kThreads, 0, stream, g, step, layer, qkv);
}

void KeepPending(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv) {
  Launch(g.cache == Cache::kBf16 ? PendingKernel<Cache::kBf16> : PendingKernel<Cache::kF32>,
         RowsByHeads(step, g.num_heads), kThreads, 0, stream, g, step, layer, qkv);
}

}  // namespace folio::cuda
