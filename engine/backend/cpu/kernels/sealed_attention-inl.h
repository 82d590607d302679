// Attention of a few queries over a page of integers (kv_types.h). Scales of keys go to the query,
// those of values to the weights of the softmax; what is multiplied are integers of 16 bits with
// those of the cache, whose sums are exact.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/int_vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Bytes of a line of 8 bits, or of two lines of 4: sixteen pairs of numbers.
constexpr int kLineBytes = 32;
constexpr int kNibbleBias = 8;

// What kRows rows of numbers are multiplied with the cache as: pairs of integers of 16 bits.
template <int kBits, int kRows, int kMost>
struct PairRows {
  alignas(64) uint32_t pairs[kRows][kMost / 2];
  float scales[kRows];    // undo the rounding
  int32_t biases[kRows];  // what a sum over all pairs has too much of, negated

  // pairs = x [n] * factors [n], the largest being 32767.
  FOLIO_INLINE void Set(int row, const float* x, const float* factors, int n) {
    alignas(64) float scaled[kMost];
    Vec magnitudes = Zero();
    Vec poison = Zero();  // not a number where one of x * factors is not finite
    for (int i = 0; i < n; i += 16) {
      const Vec v = Load(x + i) * Load(factors + i);
      Store(scaled + i, v);
      magnitudes = Max(magnitudes, Abs(v));
      poison = poison + v * Zero();
    }
    const float most = HorizontalMax(magnitudes);
    const Vec inverse = Splat(most > 1e-30f ? 32767.0f / most : 0.0f);
    for (int i = 0; i < n; i += 16) StoreRounded16(&pairs[row][i / 2], Load(scaled + i) * inverse);
    scales[row] = most / 32767.0f + HorizontalSum(poison);
    biases[row] = kBits == 4 ? -kNibbleBias * SumOfPairs(pairs[row], n / 2) : 0;
  }
};

// Adds the products of lines [begin, end) and of the pairs of kRows rows, for kColumns columns. Of
// 4 bits begin and end are even: the bytes of two lines are the same, `stride` from one to the
// next.
template <int kBits, int kRows, int kColumns, int kMost>
FOLIO_INLINE void SumLines(const std::byte* data, const std::byte* next, int64_t stride,
                           int64_t column_bytes, int begin, int end,
                           const PairRows<kBits, kRows, kMost>& x,
                           IntVec (&sums)[kColumns][kRows]) {
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[c][r] = SplatInt(x.biases[r]);
  }
  constexpr int kLines = 8 / kBits;
#pragma GCC unroll 2
  for (int s = begin; s < end; s += kLines) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = s / kLines * stride + c * column_bytes;
      Fetch(next + at);
      if constexpr (kBits == 8) {
        const PairVec line = LoadBytePairs(data + at);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[c][r] = AddPairs(sums[c][r], line, x.pairs[r][s]);
      } else {
        const NibblePairs lines = LoadNibblePairs(data + at);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sums[c][r] = AddPairs(sums[c][r], lines.low, x.pairs[r][s]);
          sums[c][r] = AddPairs(sums[c][r], lines.high, x.pairs[r][s + 1]);
        }
      }
    }
  }
}

template <int kBits, int kRows>
using QueryPairs = PairRows<kBits, kRows, kMaxHeadDim>;
template <int kBits, int kRows>
using WeightPairs = PairRows<kBits, kRows, kMaxPageTokens>;

template <int kBits, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void ScoreIntegerTiles(const std::byte* k, const std::byte* next, int dim, int tile,
                                    int num_tiles, const QueryPairs<kBits, kRows>& q, float* out) {
  const int64_t tile_bytes = int64_t{kTileTokens} * dim * kBits / 8;
  for (; tile + kColumns <= num_tiles; tile += kColumns) {
    IntVec sums[kColumns][kRows];
    SumLines(k + tile * tile_bytes, next + tile * tile_bytes, kLineBytes, tile_bytes, 0, dim / 2, q,
             sums);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Store(out + r * kWeightStride + (tile + c) * kTileTokens,
              ToFloat(sums[c][r]) * Splat(q.scales[r]));
      }
    }
  }
  if constexpr (kColumns > 1) {
    ScoreIntegerTiles<kBits, kRows, kColumns / 2>(k, next, dim, tile, num_tiles, q, out);
  }
}

// Adds the weighted values of lines [begin, end), two tokens each, to the states of the rows.
template <int kBits, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void AddIntegerValues(const AttendPageArgs& args, const std::byte* next_v,
                                   int first_row, int d, int begin, int end,
                                   const WeightPairs<kBits, kRows>& weights, const float* factors) {
  const int dim = args.dim;
  for (; d + kColumns * 16 <= dim; d += kColumns * 16) {
    IntVec sums[kColumns][kRows];
    SumLines(args.v + int64_t{d} * 2, next_v + int64_t{d} * 2, int64_t{dim} * 2, kLineBytes, begin,
             end, weights, sums);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* const state = args.state[first_row + r] + d + c * 16;
        Store(state, Fma(ToFloat(sums[c][r]), weights.scales[r], Load(state) * Splat(factors[r])));
      }
    }
  }
  if constexpr (kColumns > 1) {
    AddIntegerValues<kBits, kRows, kColumns / 2>(args, next_v, first_row, d, begin, end, weights,
                                                 factors);
  }
}

template <int kBits, int kRows>
void AttendIntegerRows(int page_tokens, const AttendPageArgs& args, int first_row) {
  const int dim = args.dim;
  QueryPairs<kBits, kRows> q;
  alignas(64) float p[kRows][kWeightStride];
  for (int r = 0; r < kRows; ++r) q.Set(r, args.q + (first_row + r) * dim, args.k_scales, dim);
  ScoreIntegerTiles<kBits, kRows>(args.k, first_row == 0 ? args.next_k : args.k, dim, 0,
                                  page_tokens / kTileTokens, q, p[0]);
  const PageFold fold = FoldScores<F32Cache>(page_tokens, args, first_row, kRows, p);
  WeightPairs<kBits, kRows> weights;
  for (int r = 0; r < kRows; ++r) weights.Set(r, p[r], args.v_scales, page_tokens);
  // What lies outside of the tokens that a row sees has no weight.
  AddIntegerValues<kBits, kRows>(args, first_row == 0 ? args.next_v : args.v, first_row, 0,
                                 fold.begin / 4 * 2, (fold.end + 3) / 4 * 2, weights, fold.factors);
}

template <int kBits, int kRows = kMaxRows>
void AttendIntegerPage(int page_tokens, const AttendPageArgs& args, int row = 0) {
  for (; row + kRows <= args.num_rows; row += kRows) {
    AttendIntegerRows<kBits, kRows>(page_tokens, args, row);
  }
  if constexpr (kRows > 1) AttendIntegerPage<kBits, FewerRows(kRows)>(page_tokens, args, row);
}

void AttendSealedPage(int bits, int page_tokens, const AttendPageArgs& args) {
  if (bits == 8) return AttendIntegerPage<8>(page_tokens, args);
  AttendIntegerPage<4>(page_tokens, args);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
