// Attention of a few queries over a page of integers (kv_types.h). Scales of keys go to the query,
// those of values to the weights of the softmax; what is multiplied are integers of 8 bits with
// those of the cache, whose sums are exact.
#pragma once

#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/fetcher-inl.h"
#include "engine/backend/cpu/kernels/int_vec-inl.h"
#include "engine/backend/cpu/kernels/quad_rows-inl.h"
#include "engine/backend/cpu/kernels/sealed_softmax-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int kLineBytes = 64;

// A line of a sealed page: sixteen quads of numbers, of 4 bits two such. kBias was added to each
// number. They meet inputs in [-127, 127], or [0, 127] if kPositive.
template <int kBits, bool kPositive>
struct SealedLine {
  static constexpr int kQuads = 1;
  static constexpr int kBias = SignedQuads::kBias;

  FOLIO_INLINE explicit SealedLine(const std::byte* line) : quads(LoadBits(line)) {}
  FOLIO_INLINE IntVec Add(IntVec sums, int /*quad*/, uint32_t x) const {
    return ForRegs<IntVec>([&](int i) { return quads.Add(sums.r[i], i, x); });
  }

  SignedQuads quads;
};

template <>
struct SealedLine<8, true> {
  static constexpr int kQuads = 1;
  static constexpr int kBias = 0;

  FOLIO_INLINE explicit SealedLine(const std::byte* line) : bytes(LoadBits(line)) {}
  FOLIO_INLINE IntVec Add(IntVec sums, int /*quad*/, uint32_t x) const {
    return ForRegs<IntVec>([&](int i) { return DotSigned(sums.r[i], bytes.r[i], x); });
  }

  BitVec bytes;
};

template <bool kPositive>
struct SealedLine<4, kPositive> {
  static constexpr int kQuads = 2;
  static constexpr int kBias = 8;

  FOLIO_INLINE explicit SealedLine(const std::byte* line) {
    const BitVec both = LoadBits(line);
#pragma GCC unroll 2
    for (int quad = 0; quad < 2; ++quad) {
      quads[quad] = ForRegs<BitVec>([&](int i) { return (both.r[i] >> (4 * quad)) & 0x0f0f0f0fu; });
    }
  }
  FOLIO_INLINE IntVec Add(IntVec sums, int quad, uint32_t x) const {
    return ForRegs<IntVec>([&](int i) { return DotBytes(sums.r[i], quads[quad].r[i], x); });
  }

  BitVec quads[2];
};

// Of the integers of the slice that comes next, line by line all along the page; its scales, which
// are read first, are fetched at once. Only the first rows of a page fetch.
FOLIO_INLINE Fetcher FetcherOfNext(int bits, int page_tokens, const AttendPageArgs& args,
                                   int first_row) {
  if (first_row > 0 || args.next_k == args.k) return {nullptr, 0, 1};
  const int64_t num_bytes = int64_t{page_tokens} * args.dim * 2 * bits / 8;
  const int64_t scale_bytes = (args.dim + page_tokens) * int64_t{sizeof(float)};
  for (int64_t i = 0; i < scale_bytes; i += 64) Fetch(args.next_k + num_bytes + i);
  return {args.next_k, num_bytes, num_bytes / 64};
}

// Adds the products of quads [begin, end) of numbers, whole lines, and of kRows rows, for kColumns
// columns of lines that are `stride` bytes from one to the next.
template <typename Line, int kRows, int kColumns, int kMost>
FOLIO_INLINE void SumLines(const std::byte* data, int64_t stride, int64_t column_bytes, int begin,
                           int end, const QuadRows<Line, kRows, kMost>& x, Fetcher* fetcher,
                           IntVec (&sums)[kColumns][kRows]) {
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[c][r] = SplatInt(0);
  }
  constexpr int kQuads = Line::kQuads;
  for (int s = begin; s < end; s += kQuads) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      // Many rows have the rest fetched as they are rounded.
      if (kRows < 4 || c % 2 == 0) fetcher->Line();
      const Line line(data + s / kQuads * stride + c * column_bytes);
#pragma GCC unroll 2
      for (int quad = 0; quad < kQuads; ++quad) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sums[c][r] = line.Add(sums[c][r], quad, x.quads[r][s + quad]);
        }
      }
    }
  }
  // At last: the products do not wait for biases.
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[c][r] = x.WithoutBias(r, sums[c][r]);
  }
}

template <int kBits, int kRows>
using QueryQuads = QuadRows<SealedLine<kBits, false>, kRows, kMaxHeadDim>;
template <int kBits, int kRows>
using WeightQuads = QuadRows<SealedLine<kBits, true>, kRows, kMaxPageTokens>;

template <int kBits, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void ScoreIntegerTiles(const std::byte* k, int dim, int tile, int num_tiles,
                                    const QueryQuads<kBits, kRows>& q, Fetcher* fetcher,
                                    float* out) {
  const int64_t tile_bytes = int64_t{kTileTokens} * dim * kBits / 8;
  for (; tile + kColumns <= num_tiles; tile += kColumns) {
    IntVec sums[kColumns][kRows];
    SumLines(k + tile * tile_bytes, kLineBytes, tile_bytes, 0, dim / 4, q, fetcher, sums);
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
    ScoreIntegerTiles<kBits, kRows, kColumns / 2>(k, dim, tile, num_tiles, q, fetcher, out);
  }
}

// Adds the weighted values of quads of tokens [begin, end), whole lines, to the states of the rows.
template <int kBits, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void AddIntegerValues(const AttendPageArgs& args, int first_row, int d, int begin,
                                   int end, const WeightQuads<kBits, kRows>& weights,
                                   const float* factors, Fetcher* fetcher) {
  const int dim = args.dim;
  for (; d + kColumns * 16 <= dim; d += kColumns * 16) {
    IntVec sums[kColumns][kRows];
    SumLines(args.v + int64_t{d} * 4, int64_t{dim} * 4, kLineBytes, begin, end, weights, fetcher,
             sums);
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
    AddIntegerValues<kBits, kRows, kColumns / 2>(args, first_row, d, begin, end, weights, factors,
                                                 fetcher);
  }
}

template <int kBits, int kRows>
void AttendIntegerRows(int page_tokens, const AttendPageArgs& args, int first_row) {
  const int dim = args.dim;
  Fetcher fetcher = FetcherOfNext(kBits, page_tokens, args, first_row);
  QueryQuads<kBits, kRows> q;
  alignas(64) float p[kRows][kWeightStride];
  alignas(64) float logs[kMaxPageTokens];
  LogsOfScales(page_tokens, args.v_scales, logs);
  q.Set(args.q + first_row * dim, dim, args.k_scales, dim, &fetcher);
  ScoreIntegerTiles<kBits, kRows>(args.k, dim, 0, page_tokens / kTileTokens, q, &fetcher, p[0]);
  WeightQuads<kBits, kRows> weights;
  const PageFold fold = FoldSealedScores(page_tokens, args, first_row, p, logs, &weights, &fetcher);
  // What lies outside of the tokens that a row sees has no weight.
  AddIntegerValues<kBits, kRows>(args, first_row, 0, fold.begin / 8 * 2, (fold.end + 7) / 8 * 2,
                                 weights, fold.factors, &fetcher);
  fetcher.Rest();
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
