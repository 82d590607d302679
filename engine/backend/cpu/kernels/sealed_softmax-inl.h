// The softmax of scores over a page of integers (kv_types.h): its weights, times the scales of the
// values, become integers as they are computed.
#pragma once

#include <algorithm>

#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/quad_rows-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// log2 of the scales of a page's values, at least -100: weights relative to the largest product
// with a scale, and sums of them, stay finite. What is not finite stays so.
FOLIO_INLINE void LogsOfScales(int page_tokens, const float* scales, float* logs) {
  for (int t = 0; t < page_tokens; t += kTileTokens) {
    Store(logs + t, Log2(Max(Splat(0x1p-100f), Load(scales + t))));
  }
}

// Turns the scores of kRows rows into weights times scales of the values, as integers, the largest
// of each row being 127, and updates maxima and sums of the rows. The maximum of a row is the
// logarithm of such a product: whatever it is, sums and values are relative to it.
//   scores  [kRows][kWeightStride]
//   logs    of LogsOfScales
template <typename Line, int kRows>
FOLIO_INLINE PageFold FoldSealedScores(int page_tokens, const AttendPageArgs& args, int first_row,
                                       float (&scores)[kRows][kWeightStride], const float* logs,
                                       QuadRows<Line, kRows, kMaxPageTokens>* weights,
                                       Fetcher* fetcher) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2 = 0.693147181f;
  constexpr float kLog2Of127 = 6.98868469f;
  const int dim = args.dim;
  alignas(64) float lanes[16][16];
  PageFold fold;
  fold.begin = page_tokens;
  for (int r = 0; r < kRows; ++r) {
    const int row = first_row + r;
    PrepareScores({0, page_tokens}, args, row, scores[r]);
    Store(lanes[r], MaxScores(scores[r], {0, page_tokens}, args.lo[row], args.hi[row], [&](int t) {
            return Fma(Load(scores[r] + t), kLog2E, Load(logs + t));
          }));
    fold.begin = std::min(fold.begin, args.lo[row]);
    fold.end = std::max(fold.end, args.hi[row]);
  }
  // Where a row sees nothing, its weights are 0 beside any finite number. What is no number stays.
  const Vec largest = Max(Splat(-1e30f), MaxOfRows<kRows>(lanes));
  alignas(64) float shifts[16];
  Store(shifts, Splat(kLog2Of127) - largest);
  const auto of_states = [&](int which) {
    return VecOfRows<kRows>([&](int r) { return args.state[first_row + r][dim + which]; });
  };
  const Vec page_max = largest * Splat(kLn2);
  const Vec old_max = of_states(0);
  const Vec new_max = Max(old_max, page_max);
  const Vec factors = Exp(old_max - new_max);
  // The second difference is 0, or no number where a score or scale is not finite.
  const Vec scales = (Exp(page_max - new_max) + (page_max - page_max)) * Splat(1.0f / 127.0f);
  Store(fold.factors, factors);
  Store(weights->scales, scales);

  IntVec sums_of_bytes[kRows] = {};
  for (int r = 0; r < kRows; ++r) {
    const Vec shift = Splat(shifts[r]);
    Vec sum = Zero();
    const auto product = [&](int t) {
      const Vec weight = PowerOfTwo(Fma(Load(scores[r] + t), kLog2E, shift));
      sum = sum + weight;
      return weight * Load(args.v_scales + t);
    };
    ForSixtyFours(page_tokens, product, [&](int t, const Vec(&products)[4]) {
      fetcher->Lines(4);
      weights->Put(r, t, products, &sums_of_bytes[r]);
    });
    Store(lanes[r], sum);
  }
  weights->SetBiases(sums_of_bytes);

  alignas(64) float max[16];
  alignas(64) float sums[16];
  Store(max, new_max);
  Store(sums, Fma(of_states(1), factors, SumsOfRows<kRows>(lanes) * scales));
  for (int r = 0; r < kRows; ++r) {
    args.state[first_row + r][dim] = max[r];
    args.state[first_row + r][dim + 1] = sums[r];
  }
  return fold;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
