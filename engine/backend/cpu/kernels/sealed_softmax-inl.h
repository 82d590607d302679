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

// The softmax of the scores of kRows rows: their largest products are found first, so that what is
// computed between the two steps hides how long that takes.
template <int kRows>
class SealedSoftmax {
 public:
  // scores [kRows][kWeightStride], logs of LogsOfScales.
  FOLIO_INLINE SealedSoftmax(int page_tokens, const AttendPageArgs& args, int first_row,
                             float (*scores)[kWeightStride], const float* logs)
      : page_tokens_(page_tokens), args_(args), first_row_(first_row), scores_(scores) {
    alignas(64) float lanes[16][16];
    fold_.begin = page_tokens;
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row + r;
      PrepareScores(page_tokens, args, row, scores[r]);
      Store(lanes[r], MaxScores(scores[r], page_tokens, args.lo[row], args.hi[row], [&](int t) {
              return Fma(Load(scores[r] + t), kLog2E, Load(logs + t));
            }));
      fold_.begin = std::min(fold_.begin, args.lo[row]);
      fold_.end = std::max(fold_.end, args.hi[row]);
    }
    // Where a row sees nothing, its weights are 0 beside any finite number. What is no number
    // stays.
    const Vec largest = Max(Splat(-1e30f), MaxOfRows<kRows>(lanes));
    Store(shifts_, Splat(kLog2Of127) - largest);
    const Vec page_max = largest * Splat(kLn2);
    const Vec old_max = OfStates(0);
    const Vec new_max = Max(old_max, page_max);
    Store(max_, new_max);
    Store(fold_.factors, Exp(old_max - new_max));
    // The difference is 0, or no number where a score or scale is not finite.
    Store(page_factors_, (Exp(page_max - new_max) + (page_max - page_max)) * Splat(1.0f / 127.0f));
  }

  // Weights times scales of values as integers, the largest of each row being 127. Updates maxima
  // and sums of the rows. The maximum of a row is the logarithm of such a product: whatever it is,
  // sums and values are relative to it.
  template <typename Line>
  FOLIO_INLINE const PageFold& Weigh(QuadRows<Line, kRows, kMaxPageTokens>* weights,
                                     Fetcher* fetcher) {
    alignas(64) float lanes[16][16];
    IntVec sums_of_bytes[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      const Vec shift = Splat(shifts_[r]);
      Vec sum = Zero();
      const auto product = [&](int t) {
        const Vec weight = PowerOfTwo(Fma(Load(scores_[r] + t), kLog2E, shift));
        sum = sum + weight;
        return weight * Load(args_.v_scales + t);
      };
      ForSixtyFours(page_tokens_, product, [&](int t, const Vec(&products)[4]) {
        fetcher->Lines(4);
        weights->Put(r, t, products, &sums_of_bytes[r]);
      });
      Store(lanes[r], sum);
    }
    weights->SetBiases(sums_of_bytes);
    Store(weights->scales, Load(page_factors_));
    alignas(64) float sums[16];
    Store(sums,
          Fma(OfStates(1), Load(fold_.factors), SumsOfRows<kRows>(lanes) * Load(page_factors_)));
    for (int r = 0; r < kRows; ++r) {
      args_.state[first_row_ + r][args_.dim] = max_[r];
      args_.state[first_row_ + r][args_.dim + 1] = sums[r];
    }
    return fold_;
  }

 private:
  // Maxima (0) or sums (1) of the rows.
  FOLIO_INLINE Vec OfStates(int which) const {
    return VecOfRows<kRows>([&](int r) { return args_.state[first_row_ + r][args_.dim + which]; });
  }

  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2 = 0.693147181f;
  static constexpr float kLog2Of127 = 6.98868469f;

  const int page_tokens_;
  const AttendPageArgs& args_;
  const int first_row_;
  float (*const scores_)[kWeightStride];
  PageFold fold_;
  alignas(64) float shifts_[16];
  alignas(64) float max_[16];
  alignas(64) float page_factors_[16];
};

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
