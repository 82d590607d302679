// What the matrix unit does of the kernels.
#pragma once

#include "engine/backend/cpu/kernels/amx_attention-inl.h"
#include "engine/backend/cpu/kernels/amx_matmul-inl.h"
#include "engine/backend/cpu/kernels/amx_scores-inl.h"
#include "engine/backend/cpu/kernels/amx_sealed_attention-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// The ceiling of the matrix unit for folio-bench: products of whole tiles, four of them a step.
constexpr int kMeterTilesFlops = 4 * 2 * kTileRows * 16 * 2 * kTilePairs;
template <typename Tiles>
void MultiplyTilesForTime(int64_t steps) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  Tiles::Configure(config);
  for (int64_t step = 0; step < steps; ++step) {
    Tiles::template AddBf16<0, 4, 6>();
    Tiles::template AddBf16<1, 4, 7>();
    Tiles::template AddBf16<2, 5, 6>();
    Tiles::template AddBf16<3, 5, 7>();
  }
  Tiles::Release();
}

template <typename Tiles>
void UseMatrixUnit(Kernels* kernels) {
  kernels->bf16_matmul_rows = kBf16BlockRows;
  kernels->integer_matmul_rows = kTileRows;
  kernels->panel_bytes_at_once = 1 << 20;
  kernels->bf16_rows_at_once = kBf16RowsAtOnce;
  kernels->pack_x = PackXForTiles;
  kernels->matmul = MultiplyTiles<Tiles>;
  kernels->matmul_scratch_bytes = ScratchForTiles;
  kernels->attend_page = AttendPageTiles<Tiles>;
  kernels->attend_sealed_page = AttendSealedTiles<Tiles>;
  kernels->score_chunks = ScoreChunkTiles<Tiles>;
  kernels->score_page = ScorePageTiles<Tiles>;
  kernels->begin_scores = BeginScores<Tiles>;
  kernels->end_scores = Tiles::Release;
  kernels->pack_chunk_queries = PackTileQueries;
  kernels->chunk_query_bytes = TileQueryBytes;
  kernels->multiply_tiles = MultiplyTilesForTime<Tiles>;
  kernels->multiply_tiles_flops = kMeterTilesFlops;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
