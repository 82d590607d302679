// Matrix products over packed panels. One accumulator per output and row, inputs in ascending
// order, so a row's result is the same bits whatever rows run beside it.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/integer_matmul-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#include "engine/backend/cpu/kernels/write_outputs-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int kPackInputs = 64;

// How a panel stores one pair of inputs for its 32 outputs. LoadPart reads 16 outputs from `w` on,
// of a pair in kParts parts: all rows meet one before the next is loaded.
struct Bf16Weights {
  using Operand = Pair;
  static constexpr int kPairBytes = 2 * kPanel * 2;
  static constexpr int kVecBytes = 64;
  static constexpr int kParts = kPairParts;
  static FOLIO_INLINE auto LoadPart(const std::byte* w, int part) { return LoadPairPart(w, part); }
  template <typename Weights>
  static FOLIO_INLINE Vec Add(Vec sum, Weights weights, Operand x, int part) {
    return AddPairPart(sum, weights, x, part);
  }
};

template <typename LoadFn, int kElementBytes>
struct PlainWeights {
  using Operand = FloatPair;
  static constexpr int kPairBytes = 2 * kPanel * kElementBytes;
  static constexpr int kVecBytes = 16 * kElementBytes;
  static constexpr int kParts = 2;
  static FOLIO_INLINE Vec LoadPart(const std::byte* w, int part) {
    return LoadFn::Do(w + part * kPanel * kElementBytes);
  }
  static FOLIO_INLINE Vec Add(Vec sum, Vec weights, Operand x, int part) {
    return Fma(weights, part == 0 ? x.first : x.second, sum);
  }
};

struct LoadF32 {
  static FOLIO_INLINE Vec Do(const std::byte* p) { return Load(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
  static FOLIO_INLINE Vec Do(const std::byte* p) {
    return LoadFp16(reinterpret_cast<const uint16_t*>(p));
  }
};
using F32Weights = PlainWeights<LoadF32, 4>;
using Fp16Weights = PlainWeights<LoadF16, 2>;

template <typename Weights, int kRows>
void MultiplyBlock(const MatMulArgs& args, int64_t panel, int row,
                   const typename Weights::Operand* x) {
  constexpr int kVecs = kRows <= kWideRows ? 2 : 1;
  for (int vec = 0; vec < 2; vec += kVecs) {
    Vec sums[kRows][kVecs] = {};
    const std::byte* w = args.panels + panel * args.panel_bytes + vec * Weights::kVecBytes;
    const auto* operands = x;
    for (int64_t pair = 0; pair < args.num_groups; ++pair) {
      if constexpr (kFetchesAllStreams) {
        for (int line = 0; line < Weights::kPairBytes; line += 64) FetchAhead(w + line);
      }
#pragma GCC unroll 2
      for (int part = 0; part < Weights::kParts; ++part) {
        decltype(Weights::LoadPart(w, part)) weights[kVecs];
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          weights[v] = Weights::LoadPart(w + v * Weights::kVecBytes, part);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            sums[r][v] = Weights::Add(sums[r][v], weights[v], operands[r], part);
          }
        }
      }
      w += Weights::kPairBytes;
      operands += kRows;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        WriteOutputs(args, row + r, panel * kPanel + (vec + v) * 16, sums[r][v]);
      }
    }
  }
}

template <typename Weights, int kRows = kMatMulRows>
void MultiplyRemainder(const MatMulArgs& args, int64_t panel, int row, int rows,
                       const typename Weights::Operand* x) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyBlock<Weights, kRows>(args, panel, row, x);
    MultiplyRemainder<Weights, kRows - 1>(args, panel, row, rows, x);
  }
}

// Row blocks outside, panels inside: the block's inputs stay in the second-level cache while the
// caller's few panels pass over them.
template <typename Weights>
void MultiplyPanels(const MatMulArgs& args) {
  for (int row = 0; row < args.num_rows; row += kMatMulRows) {
    const int rows = std::min(kMatMulRows, args.num_rows - row);
    const auto* x =
        reinterpret_cast<const typename Weights::Operand*>(args.x + row * 2 * args.num_groups);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      MultiplyRemainder<Weights>(args, panel, row, rows, x);
    }
  }
}

// Row `r` of a block [pairs][rows] of operands. Sixty-four inputs at a time: the rows' strides
// through the block stay within the first-level cache.
template <typename Operand, typename PackFn>
void PackRowPart(const float* in, int count, int rows, PackFn pack, Operand* out) {
  alignas(64) float values[kPackInputs] = {};
  std::copy(in, in + count, values);
  Operand pairs[kPackInputs / 2];
  pack(values, kPackInputs, pairs);
  for (int i = 0; 2 * i < count; ++i) out[int64_t{i} * rows] = pairs[i];
}

template <typename Operand, typename PackFn>
void PackBlock(const float* x, int rows, int64_t inputs, PackFn pack, uint32_t* packed) {
  auto* out = reinterpret_cast<Operand*>(packed);
  for (int64_t first = 0; first < inputs; first += kPackInputs) {
    const int count = static_cast<int>(std::min<int64_t>(kPackInputs, inputs - first));
    for (int r = 0; r < rows; ++r) {
      PackRowPart(x + r * inputs + first, count, rows, pack, out + first / 2 * rows + r);
    }
  }
}

void PackX(const PanelFormat& format, const float* x, int num_rows, int64_t inputs,
           uint32_t* packed) {
  if (format.integers()) return PackIntegerX(format.group, x, num_rows, inputs, packed);
  if (format.codec == PanelFormat::Codec::kBf16) {
    return PackBlock<Pair>(x, num_rows, inputs, PackPairs, packed);
  }
  PackBlock<FloatPair>(
      x, num_rows, inputs,
      [](const float* values, int64_t n, FloatPair* out) { std::memcpy(out, values, n * 4); },
      packed);
}

void MatMul(const PanelFormat& format, const MatMulArgs& args) {
  switch (format.codec) {
    case PanelFormat::Codec::kBf16:
      return MultiplyPanels<Bf16Weights>(args);
    case PanelFormat::Codec::kF16:
      return MultiplyPanels<Fp16Weights>(args);
    case PanelFormat::Codec::kF32:
      return MultiplyPanels<F32Weights>(args);
    case PanelFormat::Codec::kInt8:
      return MultiplyIntegerPanels<Int8Panels>(format, args);
    case PanelFormat::Codec::kInt4:
      return MultiplyIntegerPanels<Int4Panels>(format, args);
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
