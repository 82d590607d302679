// Rows of numbers in bf16, and what they are multiplied with, as tiles of the matrix unit
// (amx_tiles.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/kernels/amx_bf16-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/fetcher-inl.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
// bf16 of a row of a tile.
constexpr int kTileNumbers = 2 * kTilePairs;

constexpr int64_t TilesOf(int n) { return (n + kTileNumbers - 1) / kTileNumbers; }

// `x` [rows][stride], of which `n` count, a multiple of 16, as tiles one after the other; of rows
// that there are not the tiles stay as they are.
void PackRowTiles(const float* x, int64_t stride, int rows, int n, std::byte* tiles) {
  for (int first = 0; first < n; first += kTileNumbers) {
    for (int r = 0; r < rows; ++r) {
      const float* const in = x + r * stride + first;
      StoreBf16(tiles + r * kTileRowBytes, Load(in), first + 16 < n ? Load(in + 16) : Zero());
    }
    tiles += kTileBytes;
  }
}

// Pairs of 16 columns, a row of 64 bytes every `stride` bytes, as the second operand of a product.
// Of fewer than 16 pairs the others are zeros: what lies behind them may be of another text, and
// not even a number.
template <typename Tiles, int kTile>
FOLIO_INLINE void LoadPairs(const std::byte* data, int64_t stride, int64_t pairs) {
  if (pairs >= kTilePairs) return Tiles::template Load<kTile>(data, stride);
  alignas(64) std::byte last[kTileBytes] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    std::memcpy(last + p * kTileRowBytes, data + p * stride, kTileRowBytes);
  }
  Tiles::template Load<kTile>(last, kTileRowBytes);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
