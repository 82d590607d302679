// Matrix products of integers: inputs of 8 bits, weights of 8 or 4. Within a group of inputs the
// sum is exact, groups are added in ascending order, so a row's result is the same bits whatever
// rows run beside it.
#pragma once

#include <algorithm>
#include <bit>

#include "engine/backend/cpu/kernels/int_vec-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/backend/cpu/kernels/write_outputs-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Inputs of a block of rows lie group by group: [rows] scales, [rows] sums of the integers, then
// [quads][rows] four signed bytes each.

// How kVecs vectors of 16 outputs meet 32 inputs of all rows: `w` is the first vector's weights,
// `x` [8 quads][kRows], `dots` the exact sums.
constexpr int kSpan = 32;
constexpr int kQuadBytes = kPanel * 4;

// Both lines of a quad of inputs, also where a pass over the panel takes the first alone: the pass
// over the others finds them in the cache.
FOLIO_INLINE void FetchLines(const std::byte* w) {
  FetchAhead(w);
  FetchAhead(w + 64);
}

struct Int8Panels {
  static constexpr int kBias = SignedQuads::kBias;
  static constexpr int kSpanBytes = kSpan * kPanel;
  // Rows from which compute limits a product on Zen 4 while all threads work; here never.
  static constexpr int kComputeBoundRows = kIntegerRows + 1;

  template <int kRows, int kVecs>
  static FOLIO_INLINE void AddSpan(const std::byte* w, const uint32_t* x, bool fetches,
                                   IntVec (&dots)[kRows][kVecs]) {
#pragma GCC unroll 1
    for (int quad = 0; quad < kSpan / 4; ++quad) {
      if (fetches) FetchLines(w);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const SignedQuads quads(LoadBits(w + v * 64));
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          dots[r][v] = ForRegs<IntVec>([&](int i) { return quads.Add(dots[r][v].r[i], i, x[r]); });
        }
      }
      w += kQuadBytes;
      x += kRows;
    }
  }
};

struct Int4Panels {
  static constexpr int kBias = 8;
  static constexpr int kSpanBytes = kSpan * kPanel / 2;
  static constexpr int kComputeBoundRows = 6;

  template <int kRows, int kVecs>
  static FOLIO_INLINE void AddSpan(const std::byte* w, const uint32_t* x, bool fetches,
                                   IntVec (&dots)[kRows][kVecs]) {
    NibbleSums sums[kRows][kVecs];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sums[r][v] = BeginNibbles(dots[r][v]);
    }
#pragma GCC unroll 1
    for (int step = 0; step < kSpan / 8; ++step) {
      if (fetches) FetchLines(w);
        // All rows meet one half before the other is there: registers hold no more beside the sums.
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const BitVec both = LoadBits(w + v * 64);
          const auto weights =
              ForRegs<BitVec>([&](int i) { return (both.r[i] >> (4 * half)) & 0x0f0f0f0fu; });
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            sums[r][v] = AddNibbles(sums[r][v], weights, x[half * kRows + r]);
          }
        }
      }
      w += kQuadBytes;
      x += 2 * kRows;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) dots[r][v] = EndNibbles(dots[r][v], sums[r][v]);
    }
  }
};

// Of 16 outputs of a panel, its first or second vector: the scales of a group, and the units.
FOLIO_INLINE Vec LoadScales(const std::byte* scales, int vec) {
  return LoadFp16(reinterpret_cast<const uint16_t*>(scales) + vec * 16);
}
FOLIO_INLINE Vec LoadUnits(const std::byte* units, int vec) {
  const BitVec both = LoadBits(units);
  return vec == 0 ? LowBf16(both) : HighBf16(both);
}

// sums += products of one group, `w` its weights and scales, `x` what all rows have for it.
template <typename Panels, int kRows, int kVecs>
FOLIO_INLINE void AddGroup(int group, const std::byte* w, int vec, const uint32_t* x, bool fetches,
                           Vec (&sums)[kRows][kVecs]) {
  const uint32_t* const x_scales = x;
  const uint32_t* const x_sums = x + kRows;
  x += 2 * kRows;
  IntVec dots[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const IntVec bias = SplatInt(static_cast<int32_t>(x_sums[r])) * -Panels::kBias;
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) dots[r][v] = bias;
  }
  int first = 0;
  do {
    Panels::template AddSpan<kRows, kVecs>(w + vec * 64, x, fetches, dots);
    w += Panels::kSpanBytes;
    x += kSpan / 4 * kRows;
    first += kSpan;
  } while (first < group);
  if (fetches) FetchAhead(w);
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) {
    const Vec scales = LoadScales(w, vec + v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec scale = scales * Splat(std::bit_cast<float>(x_scales[r]));
      sums[r][v] = Fma(ToFloat(dots[r][v]), scale, sums[r][v]);
    }
  }
}

template <typename Panels, int kRows>
void MultiplyGroups(const PanelFormat& format, const MatMulArgs& args, int64_t panel, int row,
                    const uint32_t* x) {
  constexpr int kVecs = kRows <= kWideIntegerRows ? 2 : 1;
  const int64_t group_bytes = format.group_bytes();
  const int64_t x_words = format.x_words() * kRows;
  const bool fetches =
      kFetchesAllStreams || kRows >= Panels::kComputeBoundRows || args.fetch_integers;
  for (int vec = 0; vec < 2; vec += kVecs) {
    Vec sums[kRows][kVecs] = {};
    const std::byte* w = args.panels + panel * args.panel_bytes;
    for (int64_t group = 0; group < args.num_groups; ++group) {
      AddGroup<Panels, kRows, kVecs>(format.group, w, vec, x + group * x_words, fetches && vec == 0,
                                     sums);
      w += group_bytes;
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const Vec units = LoadUnits(w, vec + v);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        WriteOutputs(args, row + r, panel * kPanel + (vec + v) * 16, sums[r][v] * units);
      }
    }
  }
}

template <typename Panels, int kRows = kIntegerRows>
void MultiplyGroupsRemainder(const PanelFormat& format, const MatMulArgs& args, int64_t panel,
                             int row, int rows, const uint32_t* x) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyGroups<Panels, kRows>(format, args, panel, row, x);
    MultiplyGroupsRemainder<Panels, kRows - 1>(format, args, panel, row, rows, x);
  }
}

// Row blocks outside, panels inside, as for other weights.
template <typename Panels>
void MultiplyIntegerPanels(const PanelFormat& format, const MatMulArgs& args) {
  const int64_t row_words = args.num_groups * format.x_words();
  for (int row = 0; row < args.num_rows; row += kIntegerRows) {
    const int rows = std::min(kIntegerRows, args.num_rows - row);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      MultiplyGroupsRemainder<Panels>(format, args, panel, row, rows, args.x + row * row_words);
    }
  }
}

// Where the words of one group of one row go.
struct PackedGroup {
  uint32_t* scale = nullptr;
  uint32_t* sum = nullptr;
  uint32_t* quads = nullptr;
  int64_t stride = 1;  // words from one quad to the next
};

// `values` [group]
void QuantiseGroup(const float* values, int group, const PackedGroup& out) {
  Vec magnitudes = Zero();
  for (int i = 0; i < group; i += 16) {
    const Vec v = Load(values + i);
    magnitudes = Max(magnitudes, Max(v, Zero() - v));
  }
  const float most = HorizontalMax(magnitudes);
  const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
  IntVec sums = SplatInt(0);
  for (int i = 0; i < group; i += 16) {
    const IntVec integers = Rounded(Load(values + i) * Splat(inverse));
    sums = sums + integers;
    uint32_t quads[4];
    StoreBytes(integers, quads);
    for (int quad = 0; quad < 4; ++quad) out.quads[(i / 4 + quad) * out.stride] = quads[quad];
  }
  *out.scale = std::bit_cast<uint32_t>(most / 127.0f);
  *out.sum = static_cast<uint32_t>(SumOfLanes(sums));
}

// `place` says where a group of a row goes: place(packed words of the group of all rows, row).
template <typename Place>
void PackGroups(int group, const float* x, int rows, int64_t inputs, uint32_t* packed,
                Place place) {
  // What lies behind the end of a row counts as zeros.
  alignas(64) float last[kMaxWeightGroup];
  for (int64_t first = 0; first < inputs; first += group) {
    const int count = static_cast<int>(std::min<int64_t>(group, inputs - first));
    for (int r = 0; r < rows; ++r) {
      const float* values = x + r * inputs + first;
      if (count < group) {
        std::fill(std::copy(values, values + count, last), last + group, 0.0f);
        values = last;
      }
      QuantiseGroup(values, group, place(packed, r));
    }
    packed += (2 + group / 4) * rows;
  }
}

void PackIntegerX(int group, const float* x, int rows, int64_t inputs, uint32_t* packed) {
  PackGroups(group, x, rows, inputs, packed, [rows](uint32_t* words, int r) {
    return PackedGroup{words + r, words + rows + r, words + 2 * rows + r, rows};
  });
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
