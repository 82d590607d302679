// Attention of some queries over one page of bf16, on the matrix unit (amx_tiles.h):
// keys and values of a page lie as its second operand wants them. Queries and weights are rounded
// to bf16, as bf16 products of vectors do. What a row gets does not depend on the rows beside it,
// nor on how many there are.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/backend/cpu/kernels/amx_bf16-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
// bf16 of a row of a tile.
constexpr int kTileNumbers = 2 * kTilePairs;
// Sixteen queries or rows of weights, as tiles one after the other.
template <int kMost>
using RowTiles = std::byte[kMost / kTileNumbers * kTileBytes];

// `x` [rows][stride], of which `n` count, a multiple of 16; the rest of the tiles is zeros.
void PackRowTiles(const float* x, int64_t stride, int rows, int n, std::byte* tiles) {
  for (int first = 0; first < n; first += kTileNumbers) {
    for (int r = 0; r < rows; ++r) {
      const float* const in = x + r * stride + first;
      StoreBf16(tiles + r * kTileRowBytes, Load(in));
      StoreBf16(tiles + r * kTileRowBytes + 32, first + 16 < n ? Load(in + 16) : Zero());
    }
    std::memset(tiles + rows * kTileRowBytes, 0, (kTileRows - rows) * kTileRowBytes);
    tiles += kTileBytes;
  }
}

// Fetches what will be read next, some lines at a time: more would wait for each other.
class Fetcher {
 public:
  // `calls`: of Some, about.
  Fetcher(const std::byte* data, int64_t num_bytes, int calls)
      : at_(data), end_(data + num_bytes), step_((num_bytes / calls + 63) / 64 * 64) {}
  FOLIO_INLINE void Some() {
    const std::byte* const end = std::min(at_ + step_, end_);
    for (; at_ < end; at_ += 64) Fetch(at_);
  }

 private:
  const std::byte* at_;
  const std::byte* const end_;
  const int64_t step_;
};

// Rows of pairs, of as many columns of 16 as a product wants: pair p of column c at
// data + p * pair_bytes + c * column_bytes, 64 bytes.
struct PairColumns {
  const std::byte* data = nullptr;
  int64_t pair_bytes = 0;
  int64_t column_bytes = 0;
};

// Tiles of a product of kGroups times 16 rows with kColumns columns: sums 0 to 3, then the rows,
// then columns in turn.
template <int kGroups, int kColumns>
struct TileNumbers {
  static constexpr int Sum(int group, int column) { return group * kColumns + column; }
  static constexpr int Rows(int group) { return 4 + group; }
  static constexpr int Column(int column) { return 4 + kGroups + column % (4 - kGroups); }
};

template <typename Tiles, int kGroups, int kColumns, int kColumn>
FOLIO_INLINE void AddColumn(const PairColumns& columns, int64_t pair, int64_t pairs) {
  using Numbers = TileNumbers<kGroups, kColumns>;
  constexpr int kB = Numbers::Column(kColumn);
  const std::byte* const data =
      columns.data + pair * columns.pair_bytes + kColumn * columns.column_bytes;
  if (pairs == kTilePairs) {
    Tiles::template Load<kB>(data, columns.pair_bytes);
  } else {
    // What lies behind them may be of another text, and not even a number.
    alignas(64) std::byte last[kTileBytes] = {};
    for (int64_t p = 0; p < pairs; ++p) {
      std::memcpy(last + p * kTileRowBytes, data + p * columns.pair_bytes, kTileRowBytes);
    }
    Tiles::template Load<kB>(last, kTileRowBytes);
  }
  Tiles::template AddBf16<Numbers::Sum(0, kColumn), Numbers::Rows(0), kB>();
  if constexpr (kGroups == 2) {
    Tiles::template AddBf16<Numbers::Sum(1, kColumn), Numbers::Rows(1), kB>();
  }
}

// Adds to the sums the products of `rows` with pairs [begin, end) of columns; `begin` is a multiple
// of 16. `rows`: tiles of the groups, group_bytes from one to the next.
template <typename Tiles, int kGroups, int... kColumn>
FOLIO_INLINE void AddColumns(const std::byte* rows, int64_t group_bytes, const PairColumns& columns,
                             int64_t begin, int64_t end, Fetcher* fetcher,
                             std::integer_sequence<int, kColumn...>) {
  using Numbers = TileNumbers<kGroups, sizeof...(kColumn)>;
  for (int64_t pair = begin; pair < end; pair += kTilePairs) {
    const std::byte* const tile = rows + pair / kTilePairs * kTileBytes;
    Tiles::template Load<Numbers::Rows(0)>(tile, kTileRowBytes);
    if constexpr (kGroups == 2) {
      Tiles::template Load<Numbers::Rows(1)>(tile + group_bytes, kTileRowBytes);
    }
    const int64_t pairs = std::min<int64_t>(kTilePairs, end - pair);
    (AddColumn<Tiles, kGroups, sizeof...(kColumn), kColumn>(columns, pair, pairs), ...);
    fetcher->Some();
  }
}

// Rows of one call: 16, or twice as many, a group after the other.
template <int kGroups>
struct PageRows {
  static constexpr int kMost = kGroups * kTileRows;
  int first = 0;
  int count = 0;
  int in_group(int group) const { return std::min(kTileRows, count - group * kTileRows); }
};

// Scores of tiles [tile, num_tiles) of keys: out[row][token].
template <typename Tiles, int kGroups, int kColumns = 4 / kGroups>
FOLIO_INLINE void ScoreKeyTiles(const AttendPageArgs& args,
                                const RowTiles<kMaxHeadDim> (&queries)[kGroups], int tile,
                                int num_tiles, Fetcher* fetcher, float (*out)[kWeightStride]) {
  using Numbers = TileNumbers<kGroups, kColumns>;
  const int64_t tile_bytes = int64_t{kTileTokens} * args.dim * 2;
  for (; tile + kColumns <= num_tiles; tile += kColumns) {
    const PairColumns keys = {.data = args.k + tile * tile_bytes,
                              .pair_bytes = kTileRowBytes,
                              .column_bytes = tile_bytes};
    [&]<int... kColumn>(std::integer_sequence<int, kColumn...> all) {
      const auto store = [&]<int kGroup>() {
        (Tiles::template Store<Numbers::Sum(kGroup, kColumn)>(
             out[kGroup * kTileRows] + (tile + kColumn) * kTileTokens, sizeof(out[0])),
         ...);
      };
      (Tiles::template Zero<Numbers::Sum(0, kColumn)>(), ...);
      if constexpr (kGroups == 2) (Tiles::template Zero<Numbers::Sum(1, kColumn)>(), ...);
      AddColumns<Tiles, kGroups>(queries[0], sizeof(queries[0]), keys, 0, args.dim / 2, fetcher,
                                 all);
      store.template operator()<0>();
      if constexpr (kGroups == 2) store.template operator()<1>();
    }
    (std::make_integer_sequence<int, kColumns>());
  }
  if constexpr (kColumns > 1) {
    ScoreKeyTiles<Tiles, kGroups, kColumns / 2>(args, queries, tile, num_tiles, fetcher, out);
  }
}

// Adds the weighted values of tokens [begin, end) to the states of the rows, dims [d, dim).
template <typename Tiles, int kGroups, int kColumns = 4 / kGroups>
FOLIO_INLINE void AddValueTiles(const AttendPageArgs& args, const PageRows<kGroups>& rows,
                                const RowTiles<kMaxPageTokens> (&weights)[kGroups],
                                const float* factors, int begin, int end, int d, Fetcher* fetcher) {
  using Numbers = TileNumbers<kGroups, kColumns>;
  // Of rows that there are not the sums mean nothing.
  alignas(64) float sums[rows.kMost][kColumns * 16];
  for (; d + kColumns * 16 <= args.dim; d += kColumns * 16) {
    for (int r = 0; r < rows.count; ++r) {
      const float* const state = args.state[rows.first + r] + d;
      for (int c = 0; c < kColumns; ++c) {
        Store(sums[r] + c * 16, Load(state + c * 16) * Splat(factors[r]));
      }
    }
    const PairColumns values = {
        .data = args.v + int64_t{d} * 4, .pair_bytes = int64_t{args.dim} * 4, .column_bytes = 64};
    [&]<int... kColumn>(std::integer_sequence<int, kColumn...> all) {
      const auto load = [&]<int kGroup>() {
        (Tiles::template Load<Numbers::Sum(kGroup, kColumn)>(
             sums[kGroup * kTileRows] + kColumn * 16, sizeof(sums[0])),
         ...);
      };
      const auto store = [&]<int kGroup>() {
        (Tiles::template Store<Numbers::Sum(kGroup, kColumn)>(
             sums[kGroup * kTileRows] + kColumn * 16, sizeof(sums[0])),
         ...);
      };
      load.template operator()<0>();
      if constexpr (kGroups == 2) load.template operator()<1>();
      AddColumns<Tiles, kGroups>(weights[0], sizeof(weights[0]), values,
                                 begin / kTileNumbers * kTilePairs, (end + 1) / 2, fetcher, all);
      store.template operator()<0>();
      if constexpr (kGroups == 2) store.template operator()<1>();
    }
    (std::make_integer_sequence<int, kColumns>());
    for (int r = 0; r < rows.count; ++r) {
      float* const state = args.state[rows.first + r] + d;
      for (int c = 0; c < kColumns; ++c) Store(state + c * 16, Load(sums[r] + c * 16));
    }
  }
  if constexpr (kColumns > 1) {
    AddValueTiles<Tiles, kGroups, kColumns / 2>(args, rows, weights, factors, begin, end, d,
                                                fetcher);
  }
}

// One phase after the other for all rows: within a row each waits for the one before.
template <typename Tiles, int kGroups>
void AttendTileRows(int page_tokens, const AttendPageArgs& args, const PageRows<kGroups>& rows) {
  const int dim = args.dim;
  // Only the first rows of a page fetch what comes next.
  const int64_t next_bytes = rows.first == 0 && args.next_k != args.k ? 4 * dim * page_tokens : 0;
  Fetcher fetcher(args.next_k, next_bytes, page_tokens * dim / (256 * (4 / kGroups)) + rows.count);
  alignas(64) RowTiles<kMaxHeadDim> queries[kGroups];
  alignas(64) RowTiles<kMaxPageTokens> weights[kGroups];
  alignas(64) float p[rows.kMost][kWeightStride];
  for (int group = 0; group < kGroups; ++group) {
    PackRowTiles(args.q + (rows.first + group * kTileRows) * dim, dim, rows.in_group(group), dim,
                 queries[group]);
  }
  ScoreKeyTiles<Tiles, kGroups>(args, queries, 0, page_tokens / kTileTokens, &fetcher, p);
  alignas(64) float factors[rows.kMost];
  int begin = page_tokens, end = 0;
  for (int group = 0; group < kGroups; ++group) {
    const int first = group * kTileRows;
    const PageFold fold =
        FoldScores<TileWeights>(page_tokens, args, rows.first + first, rows.in_group(group),
                                p + first, [&] { fetcher.Some(); });
    std::copy(fold.factors, fold.factors + kTileRows, factors + first);
    begin = std::min(begin, fold.begin);
    end = std::max(end, fold.end);
    PackRowTiles(p[first], kWeightStride, rows.in_group(group), page_tokens, weights[group]);
  }
  AddValueTiles<Tiles, kGroups>(args, rows, weights, factors, begin, end, 0, &fetcher);
}

template <typename Tiles>
void AttendPageTiles(DType dtype, int page_tokens, const AttendPageArgs& args) {
  if (dtype != DType::kBf16) return AttendPage(dtype, page_tokens, args);
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  Tiles::Configure(config);
  for (int row = 0; row < args.num_rows; row += 2 * kTileRows) {
    const int count = std::min(2 * kTileRows, args.num_rows - row);
    count > kTileRows ? AttendTileRows<Tiles, 2>(page_tokens, args, {row, count})
                      : AttendTileRows<Tiles, 1>(page_tokens, args, {row, count});
  }
  Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
