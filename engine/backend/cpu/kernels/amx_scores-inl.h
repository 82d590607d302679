// Scores of keys and chunk summaries in bf16 on the matrix unit (amx_tiles.h). A query is the sum
// of two numbers of bf16, which keep 16 bits of it. What a row gets does not depend on the rows
// beside it, nor on how many there are.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/amx_rows-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/scores-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Of a group of 16 rows: tiles of the rounded queries, then as many of what rounding left.
constexpr int64_t QueryTilesBytes(int dim) { return TilesOf(dim) * kTileBytes; }

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

// Scores of up to 16 * kGroups packed queries against 16 keys or summaries that lie as a tile of
// keys: [row][16].
template <typename Tiles, int kGroups>
void ScoreTileGroups(const std::byte* tile, int dim, const std::byte* q, Fetcher* fetcher,
                     float* scores) {
  const int64_t bytes = QueryTilesBytes(dim);
  Tiles::template Zero<0>();
  if constexpr (kGroups == 2) Tiles::template Zero<1>();
  for (const std::byte* const part : {q, q + bytes}) {
    for (int64_t pair = 0; pair < dim / 2; pair += kTilePairs) {
      const std::byte* const rows = part + pair / kTilePairs * kTileBytes;
      Tiles::template Load<4>(rows, kTileRowBytes);
      LoadPairs<Tiles, 6>(tile + pair * kTileRowBytes, kTileRowBytes, dim / 2 - pair);
      Tiles::template AddBf16<0, 4, 6>();
      if constexpr (kGroups == 2) {
        Tiles::template Load<5>(rows + 2 * bytes, kTileRowBytes);
        Tiles::template AddBf16<1, 5, 6>();
      }
      fetcher->Some();
    }
  }
  Tiles::template Store<0>(scores, 64);
  if constexpr (kGroups == 2) Tiles::template Store<1>(scores + kTileRows * kTileTokens, 64);
}

template <typename Tiles>
void ScoreTile(const std::byte* tile, int dim, int num_rows, const std::byte* q, Fetcher* fetcher,
               float* scores) {
  num_rows > kTileRows ? ScoreTileGroups<Tiles, 2>(tile, dim, q, fetcher, scores)
                       : ScoreTileGroups<Tiles, 1>(tile, dim, q, fetcher, scores);
}

template <typename Tiles>
void ScoreChunkTiles(ScoreChunksArgs* args) {
  static_assert(kScoreRows == 2 * kTileRows);
  if (args->dtype != DType::kBf16) return ScoreChunks(args);
  const int64_t tile_bytes = int64_t{args->dim} * 2 * kTileTokens;
  Fetcher fetcher(args->next, args->next == args->tile ? 0 : tile_bytes,
                  2 * static_cast<int>(QueryTilesBytes(args->dim) / kTileBytes));
  ScoreTile<Tiles>(args->tile, args->dim, args->num_rows, args->q, &fetcher, args->scores.data());
  MarkAbove(args);
}

template <typename Tiles>
void BeginScores() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  Tiles::Configure(config);
}

template <typename Tiles>
void ScorePageTiles(DType dtype, const std::byte* keys, int page_tokens, int dim, const float* q,
                    int num_rows, float* out, int64_t out_stride) {
  if (dtype != DType::kBf16) {
    return ScorePage(dtype, keys, page_tokens, dim, q, num_rows, out, out_stride);
  }
  alignas(64) std::byte packed[kScoreRows * 2 * kMaxHeadDim * 2];
  alignas(64) float scores[kScoreRows * kTileTokens];
  Fetcher nothing(nullptr, 0, 1);
  BeginScores<Tiles>();
  for (int first = 0; first < num_rows; first += kScoreRows) {
    const int rows = std::min(kScoreRows, num_rows - first);
    PackTileQueries(dtype, q + int64_t{first} * dim, rows, dim, packed);
    for (int token = 0; token < page_tokens; token += kTileTokens) {
      ScoreTile<Tiles>(keys + int64_t{token} * dim * 2, dim, rows, packed, &nothing, scores);
      for (int r = 0; r < rows; ++r) {
        Store(out + (first + r) * out_stride + token, Load(scores + r * kTileTokens));
      }
    }
  }
  Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
