// Scores of chunk summaries in bf16 on the matrix unit (amx_tiles.h). A query is the sum of two
// numbers of bf16, so that scores are as good as those of fp32 that has 16 bits. What a row gets
// does not depend on the rows beside it, nor on how many there are.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/amx_attention-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/scores-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Of a group of 16 rows: tiles of the rounded queries, then as many of what rounding left.
constexpr int64_t QueryTilesBytes(int dim) {
  return (dim + kTileNumbers - 1) / kTileNumbers * kTileBytes;
}

int64_t TileQueryBytes(DType dtype, int num_rows, int dim) {
  if (dtype != DType::kBf16) return ChunkQueryBytes(dtype, num_rows, dim);
  return (num_rows + kTileRows - 1) / kTileRows * 2 * QueryTilesBytes(dim);
}

void PackTileQueries(DType dtype, const float* q, int num_rows, int dim, std::byte* packed) {
  if (dtype != DType::kBf16) return PackChunkQueries(dtype, q, num_rows, dim, packed);
  alignas(64) float left[kTileRows * kMaxHeadDim];
  for (int first = 0; first < num_rows; first += kTileRows) {
    const int rows = std::min(kTileRows, num_rows - first);
    const float* const from = q + int64_t{first} * dim;
    for (int i = 0; i < rows * dim; i += 16) {
      const Vec x = Load(from + i);
      Store(left + i, x - TileWeights::Round(x));
    }
    PackRowTiles(from, dim, rows, dim, packed);
    PackRowTiles(left, dim, rows, dim, packed + QueryTilesBytes(dim));
    packed += 2 * QueryTilesBytes(dim);
  }
}

template <typename Tiles, int kGroups>
void ScoreChunkGroups(ScoreChunksArgs* args) {
  using Numbers = TileNumbers<kGroups, 1>;
  const int64_t bytes = QueryTilesBytes(args->dim);
  const PairColumns summaries = {.data = args->tile, .pair_bytes = kTileRowBytes};
  const int64_t tile_bytes = int64_t{args->dim} * 2 * kTileTokens;
  Fetcher fetcher(args->next, args->next == args->tile ? 0 : tile_bytes,
                  2 * static_cast<int>(bytes / kTileBytes));
  const auto add = [&](const std::byte* queries) {
    AddColumns<Tiles, kGroups>(queries, 2 * bytes, summaries, 0, args->dim / 2, &fetcher,
                               std::make_integer_sequence<int, 1>());
  };
  Tiles::template Zero<Numbers::Sum(0, 0)>();
  if constexpr (kGroups == 2) Tiles::template Zero<Numbers::Sum(1, 0)>();
  add(args->q);
  add(args->q + bytes);
  float* const scores = args->scores.data();
  Tiles::template Store<Numbers::Sum(0, 0)>(scores, 64);
  if constexpr (kGroups == 2) {
    Tiles::template Store<Numbers::Sum(1, 0)>(scores + kTileRows * kTileTokens, 64);
  }
}

template <typename Tiles>
void ScoreChunkTiles(ScoreChunksArgs* args) {
  static_assert(kScoreRows == 2 * kTileRows);
  if (args->dtype != DType::kBf16) return ScoreChunks(args);
  args->num_rows > kTileRows ? ScoreChunkGroups<Tiles, 2>(args) : ScoreChunkGroups<Tiles, 1>(args);
  MarkAbove(args);
}

template <typename Tiles>
void BeginScores() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  Tiles::Configure(config);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
