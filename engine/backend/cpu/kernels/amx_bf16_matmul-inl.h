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
// Pairs of a slice of the inputs: the rows at a time meet it in all panels before the next one.
constexpr int64_t kSlicePairs = 1024;
constexpr int kBf16RowsAtOnce = (1 << 20) / (kSlicePairs * 4);

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

// A block of rows with a slice of the inputs of a panel.
struct TileSlice {
  const uint32_t* x = nullptr;  // of the block of rows
  int rows = 0;
  const std::byte* w = nullptr;
  int64_t pairs = 0;
  bool first = false;     // sums begin with zero, else with what is there
  float* sums = nullptr;  // [rows][outputs of the panel]
  // Fetched into the cache on the way: what comes after this slice, so many bytes for each product,
  // and the lines where the sums go, if not null.
  const std::byte* next = nullptr;
  int64_t next_step = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

template <typename Tiles, bool kSecondHalf>
void MultiplyTileBlock(const TileSlice& slice, LastTiles* last) {
  constexpr int64_t kSumsStride = kPanel * 4;
  float* const sums = slice.sums;
  if (slice.first) {
    Tiles::template Zero<0>();
    Tiles::template Zero<1>();
    if constexpr (kSecondHalf) {
      Tiles::template Zero<2>();
      Tiles::template Zero<3>();
    }
  } else {
    Tiles::template Load<0>(sums, kSumsStride);
    Tiles::template Load<1>(sums + 16, kSumsStride);
    if constexpr (kSecondHalf) {
      Tiles::template Load<2>(sums + kTileRows * kPanel, kSumsStride);
      Tiles::template Load<3>(sums + kTileRows * kPanel + 16, kSumsStride);
    }
  }
  const uint32_t* x = slice.x;
  const std::byte* w = slice.w;
  const std::byte* next = slice.next;
  float* y = slice.y;
  const float* const y_end = y == nullptr ? y : y + slice.rows * slice.y_stride;
  for (int64_t pair = 0; pair + kTilePairs <= slice.pairs; pair += kTilePairs) {
    for (int64_t line = 0; line < slice.next_step; line += 64) Fetch(next + line);
    next += slice.next_step;
    if (y < y_end) {
      FetchToWrite(y);
      FetchToWrite(y + 16);
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
  Tiles::template Store<0>(sums, kSumsStride);
  Tiles::template Store<1>(sums + 16, kSumsStride);
  if constexpr (kSecondHalf) {
    Tiles::template Store<2>(sums + kTileRows * kPanel, kSumsStride);
    Tiles::template Store<3>(sums + kTileRows * kPanel + 16, kSumsStride);
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

void WriteSums(const MatMulArgs& args, int row, int rows, int64_t panel, const float* sums) {
  for (int r = row; r < row + rows; ++r, sums += kPanel) {
    WriteOutputs(args, r, panel * kPanel, Load(sums));
    WriteOutputs(args, r, panel * kPanel + 16, Load(sums + 16));
  }
}

// A single block of rows reads every panel once anyway.
int64_t PairsOfSlice(const MatMulArgs& args) {
  return args.num_rows <= kBf16BlockRows ? args.num_groups : std::min(args.num_groups, kSlicePairs);
}

int64_t Bf16ScratchBytes(const MatMulArgs& args) {
  const bool in_slices = PairsOfSlice(args) < args.num_groups;
  const int64_t blocks = (args.num_rows + kBf16BlockRows - 1) / kBf16BlockRows;
  return (in_slices ? blocks * (args.panel_end - args.panel_begin) : 1) * kBf16BlockRows * kPanel *
         4;
}

// What a block fetches: its part of the next panel, but the first panel itself, which nobody
// fetched.
const std::byte* FetchFrom(const MatMulArgs& args, const std::byte* w, int64_t panel, int block,
                           int64_t part_bytes) {
  const bool is_own = args.num_rows <= kBf16BlockRows || (panel == args.panel_begin && block == 0);
  return is_own ? w + kFetchBytes : w + args.panel_bytes + block * part_bytes;
}

// The rows' inputs of a slice stay in the second-level cache while the panels pass.
template <typename Tiles>
void MultiplyBf16Tiles(const MatMulArgs& args) {
  LastTiles last;
  int configured = 0;
  const int64_t num_pairs = args.num_groups;
  const int64_t most = PairsOfSlice(args);
  const int num_blocks = (args.num_rows + kBf16BlockRows - 1) / kBf16BlockRows;
  const int64_t next_step = (kTilePairs * kPairWords * 4 / num_blocks + 63) / 64 * 64;
  for (int64_t pair = 0; pair < num_pairs; pair += most) {
    const bool is_last = pair + most >= num_pairs;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      const std::byte* const w = args.panels + panel * args.panel_bytes + pair * kPairWords * 4;
      for (int block = 0; block < num_blocks; ++block) {
        const int row = block * kBf16BlockRows;
        const int rows = std::min(kBf16BlockRows, args.num_rows - row);
        const int64_t pairs = std::min(most, num_pairs - pair);
        const int64_t place =
            most < num_pairs ? (panel - args.panel_begin) * num_blocks + block : 0;
        float* const sums =
            reinterpret_cast<float*>(args.scratch) + place * kBf16BlockRows * kPanel;
        const TileSlice slice = {
            .x = args.x + row * 2 * num_pairs + pair * rows,
            .rows = rows,
            .w = w,
            .pairs = pairs,
            .first = pair == 0,
            .sums = sums,
            .next = FetchFrom(args, w, panel, block, next_step * (pairs / kTilePairs)),
            .next_step = next_step,
            .y = is_last ? args.y + row * args.num_outputs + panel * kPanel : nullptr,
            .y_stride = args.num_outputs};
        if (rows != configured) ConfigureBf16<Tiles>(rows);
        configured = rows;
        rows > kTileRows ? MultiplyTileBlock<Tiles, true>(slice, &last)
                         : MultiplyTileBlock<Tiles, false>(slice, &last);
        if (is_last) WriteSums(args, row, rows, panel, sums);
      }
    }
  }
  Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
