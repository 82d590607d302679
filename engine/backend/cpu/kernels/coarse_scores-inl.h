// First scores of chunks: queries of two integers of 8 bits a number against the 8-bit copies of
// their summaries, whose sums are exact, and how far these scores may lie from those of the
// summaries themselves.
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

// Pairs of a tile and a query whose two sums stay in registers.
constexpr int kCoarsePairs = kSums / 2;

FOLIO_INLINE uint32_t QuadAt(const std::array<int8_t, kMaxHeadDim>& bytes, int quad) {
  uint32_t word;
  std::memcpy(&word, &bytes[4 * quad], sizeof(word));
  return word;
}

// The largest lane of each of kCount sums, converted.
template <int kCount>
FOLIO_INLINE void StoreLargest(const IntVec (&sums)[kCount], float* out) {
  alignas(64) float lanes[16][16];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) Store(lanes[i], FromBits(sums[i]));
  const Vec largest = ReduceRows<kCount>(
      lanes, [](Reg a, Reg b) { return (Reg)((IntReg)a > (IntReg)b ? (IntReg)a : (IntReg)b); });
  Store(out, ToFloat(BitsOf(largest)));
}

// `largest`: integers of the best chunk of a tile.
FOLIO_INLINE void WriteBounds(const CoarseScoresArgs& args, int row, int tile, float largest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const CoarseQuery& q = args.queries[row];
  const float score = largest * q.unit;
  const float least = args.scales[tile] * (score - q.margin);
  const float most = args.scales[tile] * (score + q.margin);
  const bool known = least > -kInfinity && most < kInfinity;
  const int64_t at = row * args.row_floats + (args.own_tiles ? 0 : tile);
  args.least[at] = known ? least : -kInfinity;
  args.most[at] = known ? most : kInfinity;
}

// Tiles [tile, tile + kColumns) against rows [row, row + kRows), or each against the row of its own
// number.
template <bool kOwnTiles, int kRows, int kColumns>
FOLIO_INLINE void ScoreCoarseTiles(const CoarseScoresArgs& args, int row, int tile,
                                   Fetcher* fetcher) {
  using Line = SealedLine<8, false>;
  const int64_t tile_bytes = int64_t{kTileTokens} * args.dim;
  const std::byte* const tiles = args.tiles + tile * tile_bytes;
  const auto row_of = [&](int c, int r) { return kOwnTiles ? tile + c : row + r; };
  IntVec high[kColumns][kRows] = {};
  IntVec low[kColumns][kRows] = {};
  for (int quad = 0; quad < args.dim / 4; ++quad) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      fetcher->Line();
      const Line line(tiles + c * tile_bytes + quad * kLineBytes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const CoarseQuery& q = args.queries[row_of(c, r)];
        high[c][r] = line.Add(high[c][r], 0, QuadAt(q.high, quad));
        low[c][r] = line.Add(low[c][r], 0, QuadAt(q.low, quad));
      }
    }
  }
  IntVec sums[kColumns * kRows];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int32_t bias = args.queries[row_of(c, r)].sum * -Line::kBias;
      sums[c * kRows + r] = high[c][r] * 128 + low[c][r] + SplatInt(bias);
    }
  }
  alignas(64) float largest[16];
  StoreLargest(sums, largest);
  for (int c = 0; c < kColumns; ++c) {
    for (int r = 0; r < kRows; ++r) {
      WriteBounds(args, row_of(c, r), tile + c, largest[c * kRows + r]);
    }
  }
}

template <bool kOwnTiles, int kRows, int kColumns = kCoarsePairs / kRows>
void ScoreCoarseRows(const CoarseScoresArgs& args, int row, int tile, int num_tiles,
                     Fetcher* fetcher) {
  for (; tile + kColumns <= num_tiles; tile += kColumns) {
    ScoreCoarseTiles<kOwnTiles, kRows, kColumns>(args, row, tile, fetcher);
  }
  if constexpr (kColumns > 1) {
    ScoreCoarseRows<kOwnTiles, kRows, kColumns / 2>(args, row, tile, num_tiles, fetcher);
  }
}

// All rows against all tiles.
template <int kRows = kCoarsePairs>
void ScoreCommonTiles(const CoarseScoresArgs& args, int row, Fetcher* fetcher) {
  for (; row + kRows <= args.num_rows; row += kRows) {
    ScoreCoarseRows<false, kRows>(args, row, 0, args.num_tiles, fetcher);
  }
  if constexpr (kRows > 1) ScoreCommonTiles<kRows / 2>(args, row, fetcher);
}

void ScoreCoarsely(const CoarseScoresArgs& args) {
  const int num_tiles = args.own_tiles ? args.num_rows : args.num_tiles;
  const int64_t bytes = int64_t{num_tiles} * kTileTokens * args.dim;
  const bool last = args.next == args.tiles;
  if (!last) Fetch(reinterpret_cast<const std::byte*>(args.next_scales));
  Fetcher fetcher(args.next, last ? 0 : bytes, bytes / 64);
  if (args.own_tiles) {
    ScoreCoarseRows<true, 1>(args, 0, 0, num_tiles, &fetcher);
  } else {
    ScoreCommonTiles(args, 0, &fetcher);
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
