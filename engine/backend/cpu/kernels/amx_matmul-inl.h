// Matrix products on the matrix unit (amx_tiles.h). `Tiles` are its instructions. A bf16 product
// has one order of sums for any number of rows; of integers the sums of a group are exact, and what
// follows is done as in integer_matmul-inl.h: the bits are those of the vectors, which take the
// blocks of few rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/integer_matmul-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/matmul-inl.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/backend/cpu/kernels/write_outputs-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Rows of a block: two tiles of them meet the two of a panel, four products for four loads.
constexpr int kBf16BlockRows = 2 * kTileRows;
// Pairs of inputs that one product takes.
constexpr int kTilePairs = kTileRows;
constexpr int kPairWords = kPanel;  // of a panel

// Rows of a block whose weights are unpacked once, as many as leave their inputs in the
// second-level cache.
constexpr int kUnpackedForRows = 128;
// Products in flight, so that the unit does not wait for the vectors.
constexpr int kGroupsAtOnce = 4;

// bf16 of 16 numbers, to the nearest, ties to even.
FOLIO_INLINE void StoreBf16(std::byte* out, Vec x) {
  using Shorts = uint16_t __attribute__((vector_size(kRegBytes / 2)));
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) {
    const BitReg bits = (BitReg)x.r[i];
    const BitReg rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    // What is not a number stays so.
    const BitReg kept = (BitReg)(x.r[i] == x.r[i] ? rounded : BitReg{} + 0x7fc0u);
    const Shorts shorts = __builtin_convertvector(kept, Shorts);
    std::memcpy(out + i * sizeof(shorts), &shorts, sizeof(shorts));
  }
}

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

template <typename Tiles, bool kSecondHalf>
void MultiplyTileBlock(const MatMulArgs& args, int64_t panel, int row, int rows, const uint32_t* x,
                       LastTiles* last) {
  Tiles::template Zero<0>();
  Tiles::template Zero<1>();
  if constexpr (kSecondHalf) {
    Tiles::template Zero<2>();
    Tiles::template Zero<3>();
  }
  const std::byte* w = args.panels + panel * args.panel_bytes;
  const int64_t left = args.num_groups % kTilePairs;
  for (int64_t pair = 0; pair + kTilePairs <= args.num_groups; pair += kTilePairs) {
    // Later rows find the panel in the cache.
    if (row == 0) {
      for (int line = 0; line < kTilePairs * kPairWords * 4; line += 64) FetchAhead(w + line);
    }
    AddTilePairs<Tiles, kSecondHalf>(x, w);
    x += rows * kTilePairs;
    w += kTilePairs * kPairWords * 4;
  }
  if (left > 0) {
    for (int r = 0; r < rows; ++r) std::memcpy(last->x[r], x + r * left, left * 4);
    std::memcpy(last->w, w, left * kPairWords * 4);
    AddTilePairs<Tiles, kSecondHalf>(last->x, last->w);
  }
  alignas(64) float sums[kBf16BlockRows][kPanel];
  constexpr int64_t kStride = sizeof(sums[0]);
  Tiles::template Store<0>(sums[0], kStride);
  Tiles::template Store<1>(sums[0] + 16, kStride);
  if constexpr (kSecondHalf) {
    Tiles::template Store<2>(sums[kTileRows], kStride);
    Tiles::template Store<3>(sums[kTileRows] + 16, kStride);
  }
  for (int r = 0; r < rows; ++r) {
    for (int vec = 0; vec < 2; ++vec) {
      WriteOutputs(args, row + r, panel * kPanel + vec * 16, Load(&sums[r][vec * 16]));
    }
  }
}

template <typename Tiles>
void MultiplyBf16Tiles(const MatMulArgs& args) {
  LastTiles last;
  for (int row = 0; row < args.num_rows; row += kBf16BlockRows) {
    const int rows = std::min(kBf16BlockRows, args.num_rows - row);
    const int first_half = std::min(rows, kTileRows);
    TileConfig config;
    for (const int tile : {0, 1, 4}) config.Set(tile, first_half, kTileRowBytes);
    if (rows > kTileRows) {
      for (const int tile : {2, 3, 5}) config.Set(tile, rows - kTileRows, kTileRowBytes);
    }
    for (const int tile : {6, 7}) config.Set(tile, kTilePairs, kTileRowBytes);
    Tiles::Configure(config);
    const uint32_t* const x = args.x + row * 2 * args.num_groups;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      rows > kTileRows ? MultiplyTileBlock<Tiles, true>(args, panel, row, rows, x, &last)
                       : MultiplyTileBlock<Tiles, false>(args, panel, row, rows, x, &last);
    }
  }
  Tiles::Release();
}

// Whether a block of so many rows is worth the matrix unit; else it lies as vectors want it.
constexpr bool TakesTiles(int rows) { return rows > kIntegerRows; }

// Groups of a block for tiles: [rows] scales, [rows] sums, [rows][group / 4] words.
void PackIntegerTiles(int group, const float* x, int rows, int64_t inputs, uint32_t* packed) {
  PackGroups(group, x, rows, inputs, packed, [group, rows](uint32_t* words, int r) {
    return PackedGroup{words + r, words + rows + r, words + 2 * rows + r * (group / 4), 1};
  });
}

// A panel of bytes, group by group [group / 4][32 outputs][4], and its scales.
struct BytePanel {
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  int64_t weights_stride = 0;  // bytes from one group to the next
  int64_t scales_stride = 0;
};

// Of int4: `to` has room for num_groups * group * 32 bytes.
void UnpackPanel(const std::byte* panel, int64_t num_groups, const PanelFormat& format,
                 std::byte* to) {
  using Bytes = int8_t __attribute__((vector_size(kRegBytes)));
  const auto store = [](std::byte* out, BitReg nibbles) {
    const Bytes bytes = (Bytes)nibbles - int8_t{8};
    std::memcpy(out, &bytes, sizeof(bytes));
  };
  for (int64_t group = 0; group < num_groups; ++group) {
    const std::byte* w = panel + group * format.group_bytes();
    for (int octet = 0; octet < format.group / 8; ++octet) {
      for (int at = 0; at < kQuadBytes; at += kRegBytes) {
        const BitReg both = LoadReg<BitReg>(w + at);
        store(to + at, both & 0x0f0f0f0fu);
        store(to + kQuadBytes + at, (both >> 4) & 0x0f0f0f0fu);
      }
      w += kQuadBytes;
      to += 2 * kQuadBytes;
    }
  }
}

// Exact sums of one group of 16 rows and 16 outputs. `x` [rows][group] bytes, `w` the first
// output's four first weights.
template <typename Tiles, int kC>
void StoreDots(int group, const std::byte* x, const std::byte* w, int32_t (*dots)[16]) {
  const int step = std::min(group, kTileRowBytes);
  Tiles::template Zero<kC>();
  for (int first = 0; first < group; first += step) {
    Tiles::template Load<4>(x + first, group);
    Tiles::template Load<5>(w + first * kPanel, kQuadBytes);
    Tiles::template AddBytes<kC, 4, 5>();
  }
  Tiles::template Store<kC>(dots, sizeof(dots[0]));
}

// sums += float(dots) * (scale of the output * scale of the row). Of rows that the block does not
// have the dots are zeros.
FOLIO_INLINE void AddScaled(const int32_t (*dots)[16], Vec scales, const uint32_t* x_scales,
                            Vec (&sums)[kTileRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const auto integers =
        ForRegs<IntVec>([&](int i) { return LoadReg<IntReg>(dots[r] + i * kLanes); });
    const Vec scale = scales * Splat(std::bit_cast<float>(x_scales[r]));
    sums[r] = Fma(ToFloat(integers), scale, sums[r]);
  }
}

// 16 rows with 16 outputs of a panel.
template <typename Tiles>
FOLIO_INLINE void MultiplyByteTile(const PanelFormat& format, int64_t num_groups,
                                   const BytePanel& panel, int vec, int rows, const uint32_t* x,
                                   Vec (&sums)[kTileRows]) {
  alignas(64) int32_t dots[kGroupsAtOnce][kTileRows][16] = {};
  const int64_t x_words = format.x_words() * rows;
  const auto multiply = [&]<int kC>(int64_t group) {
    const auto* bytes = reinterpret_cast<const std::byte*>(x + group * x_words + 2 * rows);
    StoreDots<Tiles, kC>(format.group, bytes,
                         panel.weights + group * panel.weights_stride + vec * 64, dots[kC]);
  };
  const auto add = [&](int64_t group, int at) {
    // Scales of at least 13 rows, then as many sums.
    const Vec scales = LoadScales(panel.scales + group * panel.scales_stride, vec);
    AddScaled(dots[at], scales, x + group * x_words, sums);
  };
  int64_t group = 0;
  for (; group + kGroupsAtOnce <= num_groups; group += kGroupsAtOnce) {
    multiply.template operator()<0>(group);
    multiply.template operator()<1>(group + 1);
    multiply.template operator()<2>(group + 2);
    multiply.template operator()<3>(group + 3);
#pragma GCC unroll 1
    for (int at = 0; at < kGroupsAtOnce; ++at) add(group + at, at);
  }
  for (; group < num_groups; ++group) {
    multiply.template operator()<0>(group);
    add(group, 0);
  }
}

template <typename Tiles>
void MultiplyByteBlock(const PanelFormat& format, const MatMulArgs& args, const BytePanel& bytes,
                       int64_t panel, int row, int rows, const uint32_t* x) {
  for (int vec = 0; vec < 2; ++vec) {
    Vec sums[kTileRows] = {};
    MultiplyByteTile<Tiles>(format, args.num_groups, bytes, vec, rows, x, sums);
    for (int r = 0; r < rows; ++r) {
      WriteOutputs(args, row + r, panel * kPanel + vec * 16, sums[r]);
    }
  }
}

// A panel with the rows of some blocks.
template <typename Tiles, typename Panels>
void MultiplyPanelTiles(const PanelFormat& format, const MatMulArgs& args, int64_t panel,
                        int first_row, int end_row, std::byte* unpacked) {
  const std::byte* const packed = args.panels + panel * args.panel_bytes;
  const int64_t weight_bytes = int64_t{format.group} * kPanel;
  BytePanel bytes{.weights = packed,
                  .scales = packed + format.group_bytes() - 64,
                  .weights_stride = format.group_bytes(),
                  .scales_stride = format.group_bytes()};
  if (format.codec == PanelFormat::Codec::kInt4 && TakesTiles(end_row - first_row)) {
    UnpackPanel(packed, args.num_groups, format, unpacked);
    bytes.weights = unpacked;
    bytes.weights_stride = weight_bytes;
  }
  for (int row = first_row; row < end_row; row += kTileRows) {
    const int rows = std::min(kTileRows, end_row - row);
    const uint32_t* const x = args.x + row * args.num_groups * format.x_words();
    if (!TakesTiles(rows)) {
      MultiplyGroupsRemainder<Panels>(format, args, panel, row, rows, x);
      continue;
    }
    TileConfig config;
    const int step = std::min(format.group, kTileRowBytes);
    for (int tile = 0; tile < kGroupsAtOnce; ++tile) config.Set(tile, rows, kTileRowBytes);
    config.Set(4, rows, step);
    config.Set(5, step / 4, kTileRowBytes);
    Tiles::Configure(config);
    MultiplyByteBlock<Tiles>(format, args, bytes, panel, row, rows, x);
  }
}

template <typename Tiles, typename Panels>
void MultiplyIntegerTiles(const PanelFormat& format, const MatMulArgs& args) {
  // Grows to the widest matrix of the model.
  static thread_local std::vector<std::byte> unpacked;
  if (format.codec == PanelFormat::Codec::kInt4 && TakesTiles(args.num_rows)) {
    const size_t size = args.num_groups * format.group * kPanel;
    if (unpacked.size() < size) unpacked.resize(size);
  }
  for (int row = 0; row < args.num_rows; row += kUnpackedForRows) {
    const int end_row = std::min(args.num_rows, row + kUnpackedForRows);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      MultiplyPanelTiles<Tiles, Panels>(format, args, panel, row, end_row, unpacked.data());
    }
  }
  if (TakesTiles(args.num_rows)) Tiles::Release();
}

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
  kernels->pack_x = PackXForTiles;
  kernels->matmul = MultiplyTiles<Tiles>;
  kernels->multiply_tiles = MultiplyTilesForTime<Tiles>;
  kernels->multiply_tiles_flops = kMeterTilesFlops;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
