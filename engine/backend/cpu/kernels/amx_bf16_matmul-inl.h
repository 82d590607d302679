// Products of bf16 on the matrix unit (amx_tiles.h): one order of sums for any number of rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/kernels/amx_bf16-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/backend/cpu/kernels/write_outputs-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Rows of a block: two tiles of them meet the two of a panel, four products for four loads.
constexpr int kBf16BlockRows = 2 * kTileRows;
constexpr int kPairWords = kPanel;  // of a panel
// Pairs of a slice. All rows meet a slice of some panels, which stays in the second-level cache,
// before the next one.
constexpr int64_t kSlicePairs = 1024;
constexpr int64_t kBf16SliceBytes = kSlicePairs * kPairWords * 4;

// A block of rows lies as [num_pairs / 16][rows][16] pairs, then [rows][num_pairs % 16].
void PackBf16Tiles(const float* x, int rows, int64_t inputs, uint32_t* packed) {
  constexpr int64_t kInputs = 2 * kTilePairs;
  const int64_t num_pairs = (inputs + 1) / 2;
  const int64_t whole = inputs / kInputs * kTilePairs;  // pairs of whole products
  auto* const out = reinterpret_cast<std::byte*>(packed);
  for (int r = 0; r < rows; ++r) {
    const float* in = x + r * inputs;
    for (int64_t pair = 0; pair < whole; pair += kTilePairs) {
      std::byte* const to = out + (pair * rows + r * kTilePairs) * 4;
      StoreBf16(to, Load(in + 2 * pair));
      StoreBf16(to + 32, Load(in + 2 * pair + 16));
    }
    alignas(64) float last[kInputs] = {};
    std::copy(in + 2 * whole, in + inputs, last);
    std::byte bytes[kTileRowBytes];
    StoreBf16(bytes, Load(last));
    StoreBf16(bytes + 32, Load(last + 16));
    const int64_t left = num_pairs - whole;
    std::memcpy(out + (whole * rows + r * left) * 4, bytes, left * 4);
  }
}

// What is left of a panel or a block of rows after whole tiles, filled up with zeros.
struct LastTiles {
  alignas(64) uint32_t x[kBf16BlockRows][kTilePairs] = {};
  alignas(64) uint32_t w[kTilePairs][kPairWords] = {};
};

// Products with a panel, tiles 0 to 3: of the first and the second half of the rows with both
// vectors of outputs.
template <typename Tiles, bool kSecondHalf>
void AddTilePairs(const void* x, const void* w) {
  constexpr int64_t kStride = kPairWords * 4;
  Tiles::template Load<4>(x, kTileRowBytes);
  Tiles::template Load<6>(w, kStride);
  Tiles::template AddBf16<0, 4, 6>();
  Tiles::template Load<7>(static_cast<const std::byte*>(w) + 64, kStride);
  Tiles::template AddBf16<1, 4, 7>();
  if constexpr (kSecondHalf) {
    Tiles::template Load<5>(static_cast<const std::byte*>(x) + kTileRows * kTileRowBytes,
                            kTileRowBytes);
    Tiles::template AddBf16<2, 5, 6>();
    Tiles::template AddBf16<3, 5, 7>();
  }
}

// A slice of the inputs of some rows and panels.
struct TileSlice {
  const uint32_t* x = nullptr;  // of the block of rows
  int rows = 0;
  const std::byte* w = nullptr;  // of the first panel
  int64_t panel_bytes = 0;
  int64_t pairs = 0;
  bool first = false;   // sums begin with zero, else with what is there
  bool stream = false;  // the weights are not in the cache yet
  // Where the sums of the first panel go after this slice, or null.
  float* y = nullptr;
  int64_t y_stride = 0;
};

// `sums`: [rows][sums_stride bytes] of the panel's outputs.
template <typename Tiles, bool kSecondHalf>
void MultiplyTileBlock(const TileSlice& slice, int64_t panel, float* sums, int64_t sums_stride,
                       LastTiles* last) {
  const std::byte* w = slice.w + panel * slice.panel_bytes;
  float* y = slice.y;
  const float* const y_end = y == nullptr ? y : y + slice.rows * slice.y_stride;
  const int64_t half = kTileRows * (sums_stride / 4);
  if (slice.first) {
    Tiles::template Zero<0>();
    Tiles::template Zero<1>();
    if constexpr (kSecondHalf) {
      Tiles::template Zero<2>();
      Tiles::template Zero<3>();
    }
  } else {
    Tiles::template Load<0>(sums, sums_stride);
    Tiles::template Load<1>(sums + 16, sums_stride);
    if constexpr (kSecondHalf) {
      Tiles::template Load<2>(sums + half, sums_stride);
      Tiles::template Load<3>(sums + half + 16, sums_stride);
    }
  }
  const uint32_t* x = slice.x;
  for (int64_t pair = 0; pair + kTilePairs <= slice.pairs; pair += kTilePairs) {
    if (slice.stream) {
      for (int line = 0; line < kTilePairs * kPairWords * 4; line += 64) FetchAhead(w + line);
    }
    if (y < y_end) {
      FetchToWrite(y + panel * kPanel);
      FetchToWrite(y + panel * kPanel + 16);
      y += slice.y_stride;
    }
    AddTilePairs<Tiles, kSecondHalf>(x, w);
    x += slice.rows * kTilePairs;
    w += kTilePairs * kPairWords * 4;
  }
  if (const int64_t left = slice.pairs % kTilePairs; left > 0) {
    for (int r = 0; r < slice.rows; ++r) std::memcpy(last->x[r], x + r * left, left * 4);
    std::memcpy(last->w, w, left * kPairWords * 4);
    AddTilePairs<Tiles, kSecondHalf>(last->x, last->w);
  }
  Tiles::template Store<0>(sums, sums_stride);
  Tiles::template Store<1>(sums + 16, sums_stride);
  if constexpr (kSecondHalf) {
    Tiles::template Store<2>(sums + half, sums_stride);
    Tiles::template Store<3>(sums + half + 16, sums_stride);
  }
}

template <typename Tiles>
void ConfigureBf16(int rows) {
  const int first_half = std::min(rows, kTileRows);
  TileConfig config;
  for (const int tile : {0, 1, 4}) config.Set(tile, first_half, kTileRowBytes);
  if (rows > kTileRows) {
    for (const int tile : {2, 3, 5}) config.Set(tile, rows - kTileRows, kTileRowBytes);
  }
  for (const int tile : {6, 7}) config.Set(tile, kTilePairs, kTileRowBytes);
  Tiles::Configure(config);
}

// One block of rows with a slice of all panels.
template <typename Tiles>
void MultiplyTileSlice(const MatMulArgs& args, const TileSlice& slice, float* sums,
                       LastTiles* last) {
  const int64_t num_panels = args.panel_end - args.panel_begin;
  const int64_t sums_stride = num_panels * kPanel * 4;
  ConfigureBf16<Tiles>(slice.rows);
  for (int64_t n = 0; n < num_panels; ++n) {
    slice.rows > kTileRows
        ? MultiplyTileBlock<Tiles, true>(slice, n, sums + n * kPanel, sums_stride, last)
        : MultiplyTileBlock<Tiles, false>(slice, n, sums + n * kPanel, sums_stride, last);
  }
}

// `sums`: [rows][outputs of the panels]
void WriteSums(const MatMulArgs& args, int row, int rows, const float* sums) {
  for (int r = row; r < row + rows; ++r) {
    for (int64_t first = args.panel_begin * kPanel; first < args.panel_end * kPanel; first += 16) {
      WriteOutputs(args, r, first, Load(sums));
      sums += 16;
    }
  }
}

// A single block of rows reads every panel once anyway.
int64_t PairsOfSlice(const MatMulArgs& args) {
  return args.num_rows <= kBf16BlockRows ? args.num_groups : std::min(args.num_groups, kSlicePairs);
}

int64_t Bf16ScratchBytes(const MatMulArgs& args) {
  const int rows = PairsOfSlice(args) < args.num_groups ? args.num_rows : kBf16BlockRows;
  return rows * (args.panel_end - args.panel_begin) * kPanel * 4;
}

template <typename Tiles>
void MultiplyBf16Tiles(const MatMulArgs& args) {
  LastTiles last;
  auto* const sums = reinterpret_cast<float*>(args.scratch);
  const int64_t num_outputs = (args.panel_end - args.panel_begin) * kPanel;
  const int64_t num_pairs = args.num_groups;
  const int64_t most = PairsOfSlice(args);
  for (int64_t pair = 0; pair < num_pairs; pair += most) {
    for (int row = 0; row < args.num_rows; row += kBf16BlockRows) {
      const int rows = std::min(kBf16BlockRows, args.num_rows - row);
      const TileSlice slice = {
          .x = args.x + row * 2 * num_pairs + pair * rows,
          .rows = rows,
          .w = args.panels + args.panel_begin * args.panel_bytes + pair * kPairWords * 4,
          .panel_bytes = args.panel_bytes,
          .pairs = std::min(most, num_pairs - pair),
          .first = pair == 0,
          .stream = row == 0,
          .y = pair + most >= num_pairs
                   ? args.y + row * args.num_outputs + args.panel_begin * kPanel
                   : nullptr,
          .y_stride = args.num_outputs};
      float* const of_rows = sums + (most < num_pairs ? row * num_outputs : 0);
      MultiplyTileSlice<Tiles>(args, slice, of_rows, &last);
      if (pair + most >= num_pairs) WriteSums(args, row, rows, of_rows);
    }
  }
  Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
