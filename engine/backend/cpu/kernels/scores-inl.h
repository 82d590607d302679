// Scores that choose chunks and tokens, and the sums that summaries are made of.
#pragma once

#include <utility>

#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Two lines of a tile as fp32: dimensions d and d + 1 of its 16 keys or summaries.
template <DType kType>
FOLIO_INLINE std::pair<Vec, Vec> LoadTileLines(const std::byte* tile, int d) {
  if constexpr (kType == DType::kBf16) {
    const BitVec pairs = LoadBits(tile + d * 2 * kTileTokens);
    return {LowBf16(pairs), HighBf16(pairs)};
  } else {
    const auto* line = reinterpret_cast<const float*>(tile) + d * kTileTokens;
    return {Load(line), Load(line + kTileTokens)};
  }
}

// Scores that choose chunks and tokens. In fp32 also where there are bf16 products: those round the
// query, and a query's few best chunks then depend on the CPU. Even and odd dimensions are summed
// apart: one tile is one chain of additions, whose latency is what it takes.
template <DType kType, int kRows>
FOLIO_INLINE void ScoreTileRows(const std::byte* tile, const std::byte* next, int dim,
                                const float* q, float* out, int64_t out_stride = kTileTokens) {
  constexpr int kLineBytes = kTileTokens * (kType == DType::kBf16 ? 2 : 4);
  Vec even[kRows] = {};
  Vec odd[kRows] = {};
  for (int d = 0; d < dim; d += 2) {
    Fetch(next + d * kLineBytes);
    if constexpr (kType == DType::kF32) Fetch(next + (d + 1) * kLineBytes);
    const auto [first, second] = LoadTileLines<kType>(tile, d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      even[r] = Fma(first, q[r * dim + d], even[r]);
      odd[r] = Fma(second, q[r * dim + d + 1], odd[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(out + r * out_stride, even[r] + odd[r]);
}

// Each row has two sums.
template <DType kType, int kRows = (kSums + 1) / 2>
void ScoreChunkRows(ScoreChunksArgs* args, int row) {
  for (; row + kRows <= args->num_rows; row += kRows) {
    ScoreTileRows<kType, kRows>(args->tile, row == 0 ? args->next : args->tile, args->dim,
                                reinterpret_cast<const float*>(args->q) + row * args->dim,
                                &args->scores[row * kTileTokens]);
  }
  if constexpr (kRows > 1) ScoreChunkRows<kType, kRows / 2>(args, row);
}

void MarkAbove(ScoreChunksArgs* args) {
  for (int r = 0; r < args->num_rows; ++r) {
    args->above[r] = LanesAbove(Load(&args->scores[r * kTileTokens]), args->thresholds[r]);
  }
}

void ScoreChunks(ScoreChunksArgs* args) {
  if (args->dtype == DType::kBf16) {
    ScoreChunkRows<DType::kBf16>(args, 0);
  } else {
    ScoreChunkRows<DType::kF32>(args, 0);
  }
  MarkAbove(args);
}

// Vectors read queries as they are.
int64_t ChunkQueryBytes(DType, int num_rows, int dim) { return int64_t{num_rows} * dim * 4; }
void PackChunkQueries(DType dtype, const float* q, int num_rows, int dim, std::byte* packed) {
  std::memcpy(packed, q, ChunkQueryBytes(dtype, num_rows, dim));
}

template <DType kType, int kRows = (kSums + 1) / 2>
void ScorePageRows(const std::byte* keys, int page_tokens, int dim, const float* q, int num_rows,
                   float* out, int64_t out_stride) {
  constexpr int kBytes = kType == DType::kBf16 ? 2 : 4;
  int row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    for (int t = 0; t < page_tokens; t += kTileTokens) {
      const std::byte* tile = keys + int64_t{t} * dim * kBytes;
      ScoreTileRows<kType, kRows>(tile, tile, dim, q + row * dim, out + row * out_stride + t,
                                  out_stride);
    }
  }
  if constexpr (kRows > 1) {
    ScorePageRows<kType, kRows / 2>(keys, page_tokens, dim, q + row * dim, num_rows - row,
                                    out + row * out_stride, out_stride);
  }
}

void ScorePage(DType dtype, const std::byte* keys, int page_tokens, int dim, const float* q,
               int num_rows, float* out, int64_t out_stride) {
  if (dtype == DType::kBf16) {
    return ScorePageRows<DType::kBf16>(keys, page_tokens, dim, q, num_rows, out, out_stride);
  }
  ScorePageRows<DType::kF32>(keys, page_tokens, dim, q, num_rows, out, out_stride);
}

void AddWeightedKeys(DType dtype, const std::byte* tile, int dim, const float* weights,
                     float* out) {
  const Vec w = Load(weights);
  if (dtype == DType::kBf16) {
    for (int d = 0; d < dim; d += 2) {
      const BitVec keys = LoadBits(tile + d * 32);
      out[d] += HorizontalSum(LowBf16(keys) * w);
      out[d + 1] += HorizontalSum(HighBf16(keys) * w);
    }
    return;
  }
  for (int d = 0; d < dim; ++d) {
    out[d] += HorizontalSum(Load(reinterpret_cast<const float*>(tile) + d * 16) * w);
  }
}

// Values of tokens t and t + 1 lie as dimensions d and d + 1 of keys do.
void AddWeightedValues(DType dtype, const std::byte* values, int page_tokens, int dim,
                       const float* weights, float* out) {
  for (int d = 0; d < dim; d += kTileTokens) {
    Vec sum = Load(out + d);
    for (int t = 0; t < page_tokens; t += 2) {
      if (dtype == DType::kBf16) {
        const BitVec pairs = LoadBits(values + (int64_t{t} / 2 * dim + d) * 4);
        sum = Fma(HighBf16(pairs), weights[t + 1], Fma(LowBf16(pairs), weights[t], sum));
      } else {
        const auto* line = reinterpret_cast<const float*>(values) + int64_t{t} * dim + d;
        sum = Fma(Load(line + dim), weights[t + 1], Fma(Load(line), weights[t], sum));
      }
    }
    Store(out + d, sum);
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
