// Attention of some queries over one page of bf16, on the matrix unit (amx_tiles.h):
// keys and values of a page lie as its second operand wants them. Queries and weights are rounded
// to bf16, as bf16 products of vectors do. What a row gets does not depend on the rows beside it,
// nor on how many there are.
//
// Rows go in groups of 16. While vectors turn the scores of a group into weights, the unit
// multiplies the weights of the group before with values and scores the group after it.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/backend/cpu/kernels/amx_rows-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Tiles: sums of up to four columns, rows, columns in turn.
constexpr int kMostColumns = 4;
constexpr int kRowTile = kMostColumns;
constexpr int ColumnTile(int column) { return kRowTile + 1 + column % 3; }

// out [16][16 * num_columns] = tiles of rows * columns, in steps of up to 16 pairs of four columns.
template <typename Tiles>
class TileProduct {
 public:
  struct Operands {
    const std::byte* rows = nullptr;  // the tile of pairs `begin` and those after it
    // Pair p of column c: 64 bytes at columns + p * pair_bytes + c * column_bytes.
    const std::byte* columns = nullptr;
    int64_t pair_bytes = 0;
    int64_t column_bytes = 0;
    int num_columns = 0;
    int64_t begin = 0;  // pairs
    int64_t end = 0;
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  TileProduct() = default;
  explicit TileProduct(const Operands& operands) : x_(operands), pair_(operands.begin) {}

  // One for each product, and one that stores the sums.
  int64_t num_steps() const {
    const int64_t products = (x_.end - x_.begin + kTilePairs - 1) / kTilePairs;
    return (x_.num_columns + kMostColumns - 1) / kMostColumns * (products + 1);
  }
  FOLIO_INLINE bool Step() {
    switch (std::min(kMostColumns, x_.num_columns - column_)) {
      case 4:
        return Columns(std::make_integer_sequence<int, 4>());
      case 3:
        return Columns(std::make_integer_sequence<int, 3>());
      case 2:
        return Columns(std::make_integer_sequence<int, 2>());
      case 1:
        return Columns(std::make_integer_sequence<int, 1>());
      default:
        return false;
    }
  }

 private:
  template <int... kColumn>
  FOLIO_INLINE bool Columns(std::integer_sequence<int, kColumn...>) {
    if (pair_ >= x_.end) {
      (Tiles::template Store<kColumn>(x_.out + (column_ + kColumn) * 16,
                                      x_.out_stride * int64_t{sizeof(float)}),
       ...);
      column_ += sizeof...(kColumn);
      pair_ = x_.begin;
      return true;
    }
    if (pair_ == x_.begin) (Tiles::template Zero<kColumn>(), ...);
    Tiles::template Load<kRowTile>(x_.rows + (pair_ - x_.begin) / kTilePairs * kTileBytes,
                                   kTileRowBytes);
    (AddColumn<kColumn>(), ...);
    pair_ += kTilePairs;
    return true;
  }
  template <int kColumn>
  FOLIO_INLINE void AddColumn() {
    constexpr int kB = ColumnTile(kColumn);
    LoadPairs<Tiles, kB>(x_.columns + pair_ * x_.pair_bytes + (column_ + kColumn) * x_.column_bytes,
                         x_.pair_bytes, x_.end - pair_);
    Tiles::template AddBf16<kColumn, kRowTile, kB>();
  }

  Operands x_;
  int column_ = 0;
  int64_t pair_ = 0;
};

// Stores 32 weights in bf16; returns sum + what is stored.
FOLIO_INLINE Vec StoreWeights(Vec first, Vec second, Vec sum, std::byte* out) {
  StoreBf16(out, first, second);
  return DotPair(sum, LoadBits(out), kPairOfOnes);
}

// What a group of 16 rows has of a page.
struct PageGroup {
  int first = 0;
  int count = 0;
  PageFold fold;
  alignas(64) std::byte weights[TilesOf(kMaxPageTokens) * kTileBytes];
  // Scores of tokens, then weighted values of dimensions.
  alignas(64) float numbers[kTileRows][kWeightStride];
};
static_assert(kMaxHeadDim <= kWeightStride);

// Turns the scores of one row, below max, into weights; returns their sum, in parts.
FOLIO_INLINE Vec WeighRow(const float* scores, int page_tokens, float max, std::byte* out) {
  const auto weight = [&](int token) { return WeightOf(Load(scores + token), max); };
  Vec sum = Zero();
  for (int t = 0; t < page_tokens; t += kTileNumbers, out += kTileBytes) {
    sum = StoreWeights(weight(t), t + 16 < page_tokens ? weight(t + 16) : Zero(), sum, out);
  }
  return sum;
}

// Turns the scores of a group into weights and updates maxima and sums. Calls `between` eight
// times.
template <typename Between>
FOLIO_INLINE void WeighScores(int page_tokens, const AttendPageArgs& args, PageGroup* group,
                              Between between) {
  group->fold = FoldScores<kTileRows>(
      {0, page_tokens}, args, group->first, group->count, group->numbers, [&](int r, float max) {
        std::byte* const out = group->weights + r * kTileRowBytes;
        const Vec sum = WeighRow(group->numbers[r], page_tokens, max, out);
        if (r % 2 == 1) between();
        return sum;
      });
  for (int r = group->count / 2 * 2; r < kTileRows; r += 2) between();
}

// Adds the weighted values to the states of the rows.
FOLIO_INLINE void AddWeightedValues(const AttendPageArgs& args, const PageGroup& group) {
  for (int r = 0; r < group.count; ++r) {
    float* const state = args.state[group.first + r];
    const Vec factor = Splat(group.fold.factors[r]);
    for (int d = 0; d < args.dim; d += 16) {
      Store(state + d, Fma(Load(state + d), factor, Load(group.numbers[r] + d)));
    }
  }
}

template <typename Tiles>
void AttendTilePage(int page_tokens, const AttendPageArgs& args) {
  const int dim = args.dim;
  const int num_groups = (args.num_rows + kTileRows - 1) / kTileRows;
  const int64_t tiles = TilesOf(dim) * kTileBytes;
  alignas(64) std::byte queries[(kPageRows / kTileRows) * TilesOf(kMaxHeadDim) * kTileBytes];
  PageGroup groups[3];
  for (int g = 0; g < num_groups; ++g) {
    PackRowTiles(args.q + g * kTileRows * dim, dim,
                 std::min(kTileRows, args.num_rows - g * kTileRows), dim, queries + g * tiles);
  }
  const auto scores_of = [&](int g) -> TileProduct<Tiles> {
    if (g >= num_groups) return {};
    PageGroup& group = groups[g % 3];
    group.first = g * kTileRows;
    group.count = std::min(kTileRows, args.num_rows - group.first);
    return TileProduct<Tiles>({.rows = queries + g * tiles,
                               .columns = args.k,
                               .pair_bytes = kTileRowBytes,
                               .column_bytes = int64_t{kTileTokens} * dim * 2,
                               .num_columns = page_tokens / kTileTokens,
                               .begin = 0,
                               .end = dim / 2,
                               .out = group.numbers[0],
                               .out_stride = kWeightStride});
  };
  const auto values_of = [&](int g) -> TileProduct<Tiles> {
    if (g < 0) return {};
    PageGroup& group = groups[g % 3];
    const int64_t begin = group.fold.begin / kTileNumbers;
    return TileProduct<Tiles>({.rows = group.weights + begin * kTileBytes,
                               .columns = args.v,
                               .pair_bytes = int64_t{dim} * 4,
                               .column_bytes = 64,
                               .num_columns = dim / 16,
                               .begin = begin * kTilePairs,
                               .end = (group.fold.end + 1) / 2,
                               .out = group.numbers[0],
                               .out_stride = kWeightStride});
  };
  TileProduct<Tiles> scores = scores_of(0);
  Fetcher fetcher(args.next_k, args.next_k != args.k ? 4 * dim * page_tokens : 0, num_groups * 8);
  while (scores.Step()) continue;
  for (int g = 0; g < num_groups; ++g) {
    TileProduct<Tiles> values = values_of(g - 1);
    scores = scores_of(g + 1);
    const int64_t steps = (values.num_steps() + scores.num_steps() + 7) / 8;
    WeighScores(page_tokens, args, &groups[g % 3], [&] {
      for (int64_t i = 0; i < steps; ++i) {
        if (!values.Step()) scores.Step();
      }
      fetcher.Some();
    });
    if (g > 0) AddWeightedValues(args, groups[(g - 1) % 3]);
  }
  TileProduct<Tiles> values = values_of(num_groups - 1);
  while (values.Step()) continue;
  AddWeightedValues(args, groups[(num_groups - 1) % 3]);
}

template <typename Tiles>
void AttendPageTiles(DType dtype, int page_tokens, const AttendPageArgs& args) {
  if (dtype != DType::kBf16) return AttendPage(dtype, page_tokens, args);
  // The unit takes a cycle for each row.
  const int rows = std::min(kTileRows, args.num_rows);
  TileConfig config;
  for (int tile = 0; tile <= kRowTile; ++tile) config.Set(tile, rows, kTileRowBytes);
  for (int tile = kRowTile + 1; tile < 8; ++tile) config.Set(tile, kTilePairs, kTileRowBytes);
  Tiles::Configure(config);
  AttendTilePage<Tiles>(page_tokens, args);
  Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
