// Products of integers on the matrix unit (amx_tiles.h). The sums of a group are exact, and what
// follows is done as in integer_matmul-inl.h: the bits are those of the vectors, which take the
// blocks of few rows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/integer_matmul-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/backend/cpu/kernels/write_outputs-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Rows that meet a panel before the next one is unpacked: so many that their inputs stay in the
// second-level cache.
constexpr int64_t kInputBytesAtOnce = 512 << 10;

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

// Up to two blocks of 16 rows that meet a panel together: tiles 0 and 1 have the sums of a group of
// the first, 2 and 3 those of the second.
struct ByteRows {
  int rows[2] = {};
  const uint32_t* x[2] = {};  // next group
  float* y[2] = {};           // outputs of the panel
  // Fetched into the cache on the way, so many bytes with each group.
  const std::byte* next = nullptr;
  int64_t next_step = 0;
};

// Sums of a group [block][outputs / 16][row][16].
using GroupDots = int32_t[2][2][kTileRows][16];

// Stores the sums of the group before to `to`, tile by tile: what stores a tile right before it is
// needed again waits for no product.
template <typename Tiles, int kC>
FOLIO_INLINE void StoreAndClear(GroupDots* to) {
  if (to != nullptr) Tiles::template Store<kC>((*to)[kC / 2][kC % 2], 64);
  Tiles::template Zero<kC>();
}

// Starts the exact sums of a group, of 32 outputs with one or both blocks.
template <typename Tiles, bool kBoth>
FOLIO_INLINE void MultiplyGroup(int group, const ByteRows& rows, const std::byte* w,
                                GroupDots* before) {
  const auto* const x0 = reinterpret_cast<const std::byte*>(rows.x[0] + 2 * rows.rows[0]);
  Tiles::template Load<4>(x0, group);
  Tiles::template Load<6>(w, kQuadBytes);
  StoreAndClear<Tiles, 0>(before);
  Tiles::template AddBytes<0, 4, 6>();
  Tiles::template Load<7>(w + 64, kQuadBytes);
  StoreAndClear<Tiles, 1>(before);
  Tiles::template AddBytes<1, 4, 7>();
  const std::byte* x1 = nullptr;
  if constexpr (kBoth) {
    x1 = reinterpret_cast<const std::byte*>(rows.x[1] + 2 * rows.rows[1]);
    Tiles::template Load<5>(x1, group);
    StoreAndClear<Tiles, 2>(before);
    Tiles::template AddBytes<2, 5, 6>();
    StoreAndClear<Tiles, 3>(before);
    Tiles::template AddBytes<3, 5, 7>();
  }
  for (int first = kTileRowBytes; first < group; first += kTileRowBytes) {
    Tiles::template Load<4>(x0 + first, group);
    Tiles::template Load<6>(w + first * kPanel, kQuadBytes);
    Tiles::template AddBytes<0, 4, 6>();
    Tiles::template Load<7>(w + first * kPanel + 64, kQuadBytes);
    Tiles::template AddBytes<1, 4, 7>();
    if constexpr (kBoth) {
      Tiles::template Load<5>(x1 + first, group);
      Tiles::template AddBytes<2, 5, 6>();
      Tiles::template AddBytes<3, 5, 7>();
    }
  }
}

// sums += float(dots) * (scale of the output * scale of the row), of one block and 16 outputs.
FOLIO_INLINE void AddScaledRows(const int32_t (&dots)[kTileRows][16], Vec of_outputs,
                                const uint32_t* x_scales, int rows, float* sums) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const Vec scale = of_outputs * Splat(std::bit_cast<float>(x_scales[r]));
    float* const sum = sums + r * kPanel;
    Store(sum, Fma(ToFloat(LoadInts(dots[r])), scale, Load(sum)));
  }
}

template <int kBlocks>
FOLIO_INLINE void AddScaled(const GroupDots& dots, const std::byte* scales,
                            const uint32_t* const (&x_scales)[2], const int (&rows)[2],
                            float (*sums)[kTileRows][kPanel]) {
  for (int vec = 0; vec < 2; ++vec) {
    const Vec of_outputs = LoadScales(scales, vec);
    for (int block = 0; block < kBlocks; ++block) {
      float* const to = sums[block][0] + vec * 16;
      // Whole blocks are unrolled.
      rows[block] == kTileRows
          ? AddScaledRows(dots[block][vec], of_outputs, x_scales[block], kTileRows, to)
          : AddScaledRows(dots[block][vec], of_outputs, x_scales[block], rows[block], to);
    }
  }
}

// Of the rows' outputs, `count` rows when the weights of a group are multiplied: before they are
// written all of them are in the cache.
FOLIO_INLINE void FetchOutputs(const MatMulArgs& args, const ByteRows& rows, int block,
                               int64_t group, int64_t count) {
  const int64_t end = std::min<int64_t>(rows.rows[block], (group + 1) * count);
  for (int64_t r = group * count; r < end; ++r) {
    FetchToWrite(rows.y[block] + r * args.num_outputs);
    FetchToWrite(rows.y[block] + r * args.num_outputs + 16);
  }
}

// One or two blocks of rows with a panel. The vectors are two groups behind the unit.
template <typename Tiles, int kBlocks>
void MultiplyByteBlocks(const PanelFormat& format, const MatMulArgs& args, const BytePanel& panel,
                        ByteRows rows, float (*sums)[kTileRows][kPanel]) {
  alignas(64) GroupDots dots[2];
  const uint32_t* x_scales[2][2];  // [group % 2][block]
  const int64_t num_groups = args.num_groups;
  const int64_t fetched_rows = (kTileRows + num_groups - 1) / num_groups;
  const auto add = [&](int64_t group) {
    AddScaled<kBlocks>(dots[group % 2], panel.scales + group * panel.scales_stride,
                       x_scales[group % 2], rows.rows, sums);
  };
  for (int64_t group = 0; group < num_groups; ++group) {
    if (group >= 2) add(group - 2);
    const std::byte* const w = panel.weights + group * panel.weights_stride;
    for (int64_t line = 0; line < rows.next_step; line += 64) Fetch(rows.next + line);
    rows.next += rows.next_step;
    MultiplyGroup<Tiles, kBlocks == 2>(format.group, rows, w,
                                       group > 0 ? &dots[(group - 1) % 2] : nullptr);
    for (int block = 0; block < kBlocks; ++block) {
      FetchOutputs(args, rows, block, group, fetched_rows);
      x_scales[group % 2][block] = rows.x[block];
      rows.x[block] += format.x_words() * rows.rows[block];
    }
  }
  GroupDots& last = dots[(num_groups - 1) % 2];
  if (num_groups >= 2) add(num_groups - 2);
  StoreAndClear<Tiles, 0>(&last);
  StoreAndClear<Tiles, 1>(&last);
  if constexpr (kBlocks == 2) {
    StoreAndClear<Tiles, 2>(&last);
    StoreAndClear<Tiles, 3>(&last);
  }
  add(num_groups - 1);
}

// `configured`: the rows that the tiles have.
template <typename Tiles>
void ConfigureBytes(int group, const ByteRows& rows, std::array<int, 2>* configured) {
  const std::array<int, 2> wanted = {rows.rows[0], rows.rows[1]};
  if (*configured == wanted) return;
  *configured = wanted;
  const int step = std::min(group, kTileRowBytes);
  TileConfig config;
  for (int block = 0; block < 2; ++block) {
    if (rows.rows[block] == 0) continue;
    config.Set(2 * block, rows.rows[block], kTileRowBytes);
    config.Set(2 * block + 1, rows.rows[block], kTileRowBytes);
    config.Set(4 + block, rows.rows[block], step);
  }
  for (const int tile : {6, 7}) config.Set(tile, step / 4, kTileRowBytes);
  Tiles::Configure(config);
}

// A panel with some rows, from a block on.
template <typename Tiles, typename Panels>
void MultiplyPanelTiles(const PanelFormat& format, const MatMulArgs& args, int64_t panel,
                        int first_row, int end_row, std::array<int, 2>* configured) {
  const std::byte* const packed = args.panels + panel * args.panel_bytes;
  BytePanel bytes{.weights = packed,
                  .scales = packed + format.group_bytes() - 64,
                  .weights_stride = format.group_bytes(),
                  .scales_stride = format.group_bytes()};
  bool unpacked = false;
  if (format.codec == PanelFormat::Codec::kInt4 && TakesTiles(end_row - first_row)) {
    UnpackPanel(packed, args.num_groups, format, args.scratch);
    bytes.weights = args.scratch;
    bytes.weights_stride = int64_t{format.group} * kPanel;
    unpacked = true;
  }
  const std::byte* const units = packed + args.num_groups * format.group_bytes();
  const bool is_first = panel == args.panel_begin;
  const int64_t num_passes = (end_row - first_row + 2 * kTileRows - 1) / (2 * kTileRows);
  for (int row = first_row; row < end_row; row += 2 * kTileRows) {
    ByteRows rows;
    // Each pass fetches its part of the next panel, but the first one its own, which nobody
    // fetched: all of it at once would keep the processor from what lies in the second-level cache.
    if (is_first && row == 0 && !unpacked) {
      rows.next = packed + kFetchBytes;
      rows.next_step = format.group_bytes();
    } else if (panel + 1 < args.panel_end) {
      const int64_t step = args.panel_bytes / (num_passes * args.num_groups);
      rows.next_step = (step + 63) / 64 * 64;
      rows.next = packed + args.panel_bytes +
                  (row - first_row) / (2 * kTileRows) * args.num_groups * rows.next_step;
    }
    int row_of[2];
    for (int block = 0; block < 2; ++block) {
      row_of[block] = row + block * kTileRows;
      const int left = std::clamp(end_row - row_of[block], 0, kTileRows);
      rows.x[block] = args.x + row_of[block] * args.num_groups * format.x_words();
      rows.y[block] = args.y + row_of[block] * args.num_outputs + panel * kPanel;
      if (TakesTiles(left)) {
        rows.rows[block] = left;
      } else if (left > 0) {
        MultiplyGroupsRemainder<Panels>(format, args, panel, row_of[block], left, rows.x[block]);
      }
    }
    if (rows.rows[0] == 0) continue;
    ConfigureBytes<Tiles>(format.group, rows, configured);
    alignas(64) float sums[2][kTileRows][kPanel] = {};
    rows.rows[1] > 0 ? MultiplyByteBlocks<Tiles, 2>(format, args, bytes, rows, sums)
                     : MultiplyByteBlocks<Tiles, 1>(format, args, bytes, rows, sums);
    for (int block = 0; block < 2; ++block) {
      for (int r = 0; r < rows.rows[block]; ++r) {
        for (int vec = 0; vec < 2; ++vec) {
          WriteOutputs(args, row_of[block] + r, panel * kPanel + vec * 16,
                       Load(sums[block][r] + vec * 16) * LoadUnits(units, vec));
        }
      }
    }
  }
}

// For a panel of unpacked weights.
int64_t IntegerScratchBytes(const PanelFormat& format, const MatMulArgs& args) {
  const bool unpacks = format.codec == PanelFormat::Codec::kInt4 && TakesTiles(args.num_rows);
  return unpacks ? args.num_groups * format.group * kPanel : 0;
}

template <typename Tiles, typename Panels>
void MultiplyIntegerTiles(const PanelFormat& format, const MatMulArgs& args) {
  const int64_t blocks = kInputBytesAtOnce / (args.num_groups * format.group * 2 * kTileRows);
  const int most = static_cast<int>(std::max<int64_t>(1, blocks)) * 2 * kTileRows;
  std::array<int, 2> configured = {};
  for (int row = 0; row < args.num_rows; row += most) {
    const int end_row = std::min(args.num_rows, row + most);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      MultiplyPanelTiles<Tiles, Panels>(format, args, panel, row, end_row, &configured);
    }
  }
  if (TakesTiles(args.num_rows)) Tiles::Release();
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
