// Matrix products over packed panels. One accumulator per output and row, inputs in ascending order, so a
// row's result is the same bits whatever rows run beside it.
#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// How a panel stores one pair of inputs for its 32 outputs.
struct Bf16Weights {
  static constexpr int kPairBytes = 2 * kPanel * 2;
  template <int kRows>
  static void Accumulate(const std::byte* w, const PairOperand* x, Vec (&acc)[kRows][2]) {
    const BitVec left = LoadBits(w);
    const BitVec right = LoadBits(w + 64);
#if !defined(__AVX512BF16__)
    // Convert once, multiply kRows times.
    const Vec left_low = LowBf16(left), left_high = HighBf16(left);
    const Vec right_low = LowBf16(right), right_high = HighBf16(right);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = acc[r][0] + left_low * x[r].first;
      acc[r][1] = acc[r][1] + right_low * x[r].first;
      acc[r][0] = acc[r][0] + left_high * x[r].second;
      acc[r][1] = acc[r][1] + right_high * x[r].second;
    }
#else
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = DotPair(acc[r][0], left, x[r]);
      acc[r][1] = DotPair(acc[r][1], right, x[r]);
    }
#endif
  }
};

template <typename LoadFn, int kElementBytes>
struct PlainWeights {
  static constexpr int kPairBytes = 2 * kPanel * kElementBytes;
  template <int kRows>
  static void Accumulate(const std::byte* w, const PairOperand* x, Vec (&acc)[kRows][2]) {
    const Vec first_left = LoadFn::Do(w);
    const Vec first_right = LoadFn::Do(w + 16 * kElementBytes);
    const Vec second_left = LoadFn::Do(w + 32 * kElementBytes);
    const Vec second_right = LoadFn::Do(w + 48 * kElementBytes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = acc[r][0] + first_left * x[r].first;
      acc[r][1] = acc[r][1] + first_right * x[r].first;
      acc[r][0] = acc[r][0] + second_left * x[r].second;
      acc[r][1] = acc[r][1] + second_right * x[r].second;
    }
  }
};

struct LoadF32 {
  static Vec Do(const std::byte* p) { return Load(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
  static Vec Do(const std::byte* p) { return LoadFp16(reinterpret_cast<const uint16_t*>(p)); }
};
using F32Weights = PlainWeights<LoadF32, 4>;
using Fp16Weights = PlainWeights<LoadF16, 2>;

void WriteOutputs(const MatMulArgs& args, int64_t row, int64_t panel, const Vec (&acc)[2]) {
  const int64_t first = panel * kPanel;
  const int count = static_cast<int>(std::min<int64_t>(kPanel, args.num_outputs - first));
  float values[kPanel];
  Store(values, acc[0]);
  Store(values + 16, acc[1]);
  float* y = args.y + row * args.num_outputs + first;
  for (int i = 0; i < count; ++i) {
    const float value = args.bias != nullptr ? values[i] + args.bias[first + i] : values[i];
    y[i] = args.add ? y[i] + value : value;
  }
}

template <typename Weights, int kRows>
void MultiplyBlock(const MatMulArgs& args, int64_t panel, int row, const PairOperand* x) {
  Vec acc[kRows][2] = {};
  const std::byte* w = args.panels + panel * args.panel_bytes;
  for (int64_t pair = 0; pair < args.num_pairs; ++pair) {
    // A few lines ahead of the hardware's own prefetch, which stops at page borders.
    __builtin_prefetch(w + 16 * Weights::kPairBytes);
    Weights::template Accumulate<kRows>(w, x, acc);
    w += Weights::kPairBytes;
    x += kRows;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) WriteOutputs(args, row + r, panel, acc[r]);
}

template <typename Weights, int kRows = kMatMulRows>
void MultiplyRemainder(const MatMulArgs& args, int64_t panel, int row, int rows,
                       const PairOperand* x) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyBlock<Weights, kRows>(args, panel, row, x);
    MultiplyRemainder<Weights, kRows - 1>(args, panel, row, rows, x);
  }
}

// Row blocks outside, panels inside: the block's inputs stay in the second-level cache while the caller's
// few panels pass over them.
template <typename Weights>
void MultiplyPanels(const MatMulArgs& args) {
  const auto* x = reinterpret_cast<const PairOperand*>(args.x);
  for (int row = 0; row < args.num_rows; row += kMatMulRows) {
    const int rows = std::min(kMatMulRows, args.num_rows - row);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
      MultiplyRemainder<Weights>(args, panel, row, rows, x + row * args.num_pairs);
    }
  }
}

// Blocks of kMatMulRows rows, each [pairs][rows] operands; the last block has only its own rows.
void PackX(DType dtype, const float* x, int num_rows, int64_t inputs, float* packed) {
  auto* out = reinterpret_cast<PairOperand*>(packed);
  const int64_t num_pairs = (inputs + 1) / 2;
  for (int row = 0; row < num_rows; row += kMatMulRows) {
    const int rows = std::min(kMatMulRows, num_rows - row);
    for (int r = 0; r < rows; ++r) {
      const float* in = x + (row + r) * inputs;
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        const float first = in[2 * pair];
        const float second = 2 * pair + 1 < inputs ? in[2 * pair + 1] : 0.0f;
        out[pair * rows + r] =
            dtype == DType::kBf16 ? PackPair(first, second) : PairOperand{first, second};
      }
    }
    out += num_pairs * rows;
  }
}

void MatMul(DType dtype, const MatMulArgs& args) {
  switch (dtype) {
    case DType::kBf16: return MultiplyPanels<Bf16Weights>(args);
    case DType::kF16: return MultiplyPanels<Fp16Weights>(args);
    default: return MultiplyPanels<F32Weights>(args);
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
