// Matrix products on the matrix unit (amx_tiles.h). `Tiles` are its instructions.
#pragma once

#include "engine/backend/cpu/kernels/amx_bf16_matmul-inl.h"
#include "engine/backend/cpu/kernels/amx_integer_matmul-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/matmul-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

template <typename Tiles>
void MultiplyTiles(const PanelFormat& format, const MatMulArgs& args) {
  switch (format.codec) {
    case PanelFormat::Codec::kBf16:
      return MultiplyBf16Tiles<Tiles>(args);
    case PanelFormat::Codec::kInt8:
      return MultiplyIntegerTiles<Tiles, Int8Panels>(format, args);
    case PanelFormat::Codec::kInt4:
      return MultiplyIntegerTiles<Tiles, Int4Panels>(format, args);
    default:
      return MatMul(format, args);
  }
}

int64_t ScratchForTiles(const PanelFormat& format, const MatMulArgs& args) {
  if (format.codec == PanelFormat::Codec::kBf16) return Bf16ScratchBytes(args);
  return format.integers() ? IntegerScratchBytes(format, args) : 0;
}

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

void PackXForTiles(const PanelFormat& format, const float* x, int num_rows, int64_t inputs,
                   uint32_t* packed) {
  if (format.codec == PanelFormat::Codec::kBf16) return PackBf16Tiles(x, num_rows, inputs, packed);
  if (format.integers() && TakesTiles(num_rows)) {
    return PackIntegerTiles(format.group, x, num_rows, inputs, packed);
  }
  PackX(format, x, num_rows, inputs, packed);
}

template <typename Tiles>
void UseMatrixUnit(Kernels* kernels) {
  kernels->bf16_matmul_rows = kBf16BlockRows;
  kernels->integer_matmul_rows = kTileRows;
  kernels->panel_group_bytes = 1 << 20;
  kernels->bf16_slice_bytes = kBf16SliceBytes;
  kernels->pack_x = PackXForTiles;
  kernels->matmul = MultiplyTiles<Tiles>;
  kernels->matmul_scratch_bytes = ScratchForTiles;
  kernels->multiply_tiles = MultiplyTilesForTime<Tiles>;
  kernels->multiply_tiles_flops = kMeterTilesFlops;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
