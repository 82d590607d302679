// First scores of chunks: queries of 8 bits against the 8-bit copies of their summaries, whose sums
// are exact, and how far these scores may lie from those of the summaries themselves.
#pragma once

#include <bit>
#include <cstring>
#include <limits>

#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/fetcher-inl.h"
#include "engine/backend/cpu/kernels/int_vec-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/sealed_attention-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// With q' = q * scales = u (j + e) and a summary = c + scales * (i + f), where c is the same for
// all, u undoes the rounding of the query, j and i are integers and no |e| or |f| is above 1/2:
//   <q, summary - c> = u <j, i> + u <e, i> + <q', f>
// The first is the score; the others are below half of u sum|i| + sum|q'|. What fp32 rounds of a
// score of dim products is below (dim / 2 + 1) 2^-24 kMostScales sum|q'|, and what the matrix unit
// makes of a query below 2^-17 kMostScales sum|q'|: 0.07 of it together.
constexpr float kMarginFactor = 0.57f;

// The first kNumbers lanes; the others are zero.
template <int kNumbers>
FOLIO_INLINE Vec LoadSome(const float* p) {
  alignas(64) float lanes[16] = {};
  std::memcpy(lanes, p, kNumbers * sizeof(float));
  return Load(lanes);
}

// What some rows score, with the scales as fp32: [1] or [kRows].
template <int kRows, bool kOwnTiles>
struct CoarseRows {
  static constexpr int kStride = kOwnTiles ? kMaxHeadDim : 0;
  static constexpr int kScaleRows = 1 + (kOwnTiles ? kRows - 1 : 0);

  FOLIO_INLINE CoarseRows(const CoarseScoresArgs& args, int first_row, Fetcher* fetcher)
      : q(args.q + int64_t{first_row} * args.dim) {
    const int dim = args.dim;
    const uint16_t* const from = args.scales + (kOwnTiles ? int64_t{first_row} * dim : 0);
    for (int r = 0; r < kScaleRows; ++r) {
      for (int d = 0; d < dim; d += 16) {
        Store(scales + r * kStride + d, LoadFp16(from + r * dim + d));
      }
    }
    quads.Set(q, dim, scales, dim, fetcher, kStride);
    const Vec magnitudes =
        kOwnTiles ? LoadSome<kRows>(args.magnitudes + first_row) : Splat(args.magnitudes[0]);
    Store(margins, (Sums(dim) + Load(quads.scales) * magnitudes) * Splat(kMarginFactor));
  }
  // Of the magnitudes of q * scales.
  FOLIO_INLINE Vec Sums(int dim) const {
    alignas(64) float sums[16][16];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      Vec sum = Zero();
      for (int d = 0; d < dim; d += 16) {
        sum = sum + Abs(Load(q + r * dim + d)) * Load(scales + r * kStride + d);
      }
      Store(sums[r], sum);
    }
    return SumsOfRows<kRows>(sums);
  }

  const float* const q;
  alignas(64) float scales[kScaleRows * kMaxHeadDim];
  QueryQuads<8, kRows> quads;
  alignas(64) float margins[16];
};

// The largest lane of each of kSums sums, converted.
template <int kSums>
FOLIO_INLINE void StoreLargest(const IntVec* sums, float* out) {
  alignas(64) float lanes[16][16];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) Store(lanes[i], FromBits(sums[i]));
  const Vec largest = ReduceRows<kSums>(
      lanes, [](Reg a, Reg b) { return (Reg)((IntReg)a > (IntReg)b ? (IntReg)a : (IntReg)b); });
  Store(out, ToFloat(BitsOf(largest)));
}

// `largest`: sum of the best chunk of a tile.
template <typename Rows>
FOLIO_INLINE void WriteBounds(const Rows& rows, int r, float largest, int64_t at,
                              const CoarseScoresArgs& args) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool known = rows.margins[r] < kInfinity;
  const float score = largest * rows.quads.scales[r];
  args.least[at] = known ? score - rows.margins[r] : -kInfinity;
  args.most[at] = known ? score + rows.margins[r] : kInfinity;
}

// All rows against tiles [tile, num_tiles).
template <int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void ScoreCommonTiles(const CoarseRows<kRows, false>& rows, int first_row, int tile,
                                   Fetcher* fetcher, const CoarseScoresArgs& args) {
  const int64_t tile_bytes = int64_t{kTileTokens} * args.dim;
  for (; tile + kColumns <= args.num_tiles; tile += kColumns) {
    IntVec sums[kColumns][kRows];
    SumLines(args.tiles + tile * tile_bytes, kLineBytes, tile_bytes, 0, args.dim / 4, rows.quads,
             fetcher, sums);
    alignas(64) float largest[16];
    StoreLargest<kColumns * kRows>(sums[0], largest);
    for (int c = 0; c < kColumns; ++c) {
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = (first_row + r) * args.row_floats + tile + c;
        WriteBounds(rows, r, largest[c * kRows + r], at, args);
      }
    }
  }
  if constexpr (kColumns > 1) {
    ScoreCommonTiles<kRows, kColumns / 2>(rows, first_row, tile, fetcher, args);
  }
}

// Each row against its own tile.
template <int kRows>
FOLIO_INLINE void ScoreOwnTiles(const CoarseRows<kRows, true>& rows, int first_row,
                                Fetcher* fetcher, const CoarseScoresArgs& args) {
  using Line = SealedLine<8, false>;
  const int64_t tile_bytes = int64_t{kTileTokens} * args.dim;
  const std::byte* const tiles = args.tiles + first_row * tile_bytes;
  IntVec sums[kRows] = {};
  for (int quad = 0; quad < args.dim / 4; ++quad) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      fetcher->Line();
      sums[r] = Line(tiles + r * tile_bytes + quad * kLineBytes)
                    .Add(sums[r], 0, rows.quads.quads[r][quad]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = rows.quads.WithoutBias(r, sums[r]);
  alignas(64) float largest[16];
  StoreLargest<kRows>(sums, largest);
  for (int r = 0; r < kRows; ++r) {
    WriteBounds(rows, r, largest[r], (first_row + r) * args.row_floats, args);
  }
}

template <bool kOwnTiles, int kRows = kMaxRows>
void ScoreCoarseRows(int row, Fetcher* fetcher, const CoarseScoresArgs& args) {
  for (; row + kRows <= args.num_rows; row += kRows) {
    const CoarseRows<kRows, kOwnTiles> rows(args, row, fetcher);
    if constexpr (kOwnTiles) {
      ScoreOwnTiles<kRows>(rows, row, fetcher, args);
    } else {
      ScoreCommonTiles<kRows>(rows, row, 0, fetcher, args);
    }
  }
  if constexpr (kRows > 1) ScoreCoarseRows<kOwnTiles, FewerRows(kRows)>(row, fetcher, args);
}

void ScoreCoarsely(const CoarseScoresArgs& args) {
  const int num_tiles = args.own_tiles ? args.num_rows : args.num_tiles;
  const int64_t bytes = int64_t{num_tiles} * kTileTokens * args.dim;
  const int64_t scale_bytes = (args.own_tiles ? args.num_rows : 1) * int64_t{args.dim} * 2;
  if (args.next != args.tiles) {
    Fetch(reinterpret_cast<const std::byte*>(args.next_magnitudes));
    for (int64_t i = 0; i < scale_bytes; i += 64) {
      Fetch(reinterpret_cast<const std::byte*>(args.next_scales) + i);
    }
  }
  Fetcher fetcher(args.next, args.next == args.tiles ? 0 : bytes, bytes / 64);
  if (args.own_tiles) {
    ScoreCoarseRows<true>(0, &fetcher, args);
  } else {
    ScoreCoarseRows<false>(0, &fetcher, args);
  }
  fetcher.Rest();
}

int64_t CountAbove(const float* values, int64_t n, float threshold) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 16) {
    count += std::popcount(LanesAbove(Load(values + i), threshold));
  }
  return count;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
