// Attention of a few queries over one page. A key or value is loaded once for all of them; each query's
// arithmetic is the same whatever the others are.
#include <algorithm>

#include "engine/backend/cpu/kernels/kernels.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int kTileTokens = 16;
// Row stride of the weights: a page and one line more, so that eight rows do not share one cache set.
constexpr int kWeightStride = kMaxPageTokens + kTileTokens;

// Keys of one tile, fp32 [dim][16] or bf16 [dim/2][16][2].
struct F32Cache {
  static constexpr int kBytes = 4;
  template <int kRows>
  static void Scores(const std::byte* tile, int dim, const float* q, Vec (&scores)[kRows]) {
    for (int d = 0; d < dim; ++d) {
      const Vec key = Load(reinterpret_cast<const float*>(tile) + d * 16);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) scores[r] = scores[r] + key * q[r * dim + d];
    }
  }
  // 16 dims of the values, tokens [begin, end) of the page.
  template <int kRows>
  static void AddValues(const std::byte* v, int dim, int begin, int end,
                        const float (&p)[kRows][kWeightStride], Vec (&acc)[kRows]) {
    const auto* values = reinterpret_cast<const float*>(v);
    for (int t = begin; t < end; ++t) {
      const Vec value = Load(values + t * dim);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = acc[r] + value * p[r][t];
    }
  }
  static const std::byte* ValueColumn(const std::byte* v, int d) { return v + d * 4; }
  static void RoundWeights(float*, int) {}
};

struct Bf16Cache {
  static constexpr int kBytes = 2;
  template <int kRows>
  static void Scores(const std::byte* tile, int dim, const float* q, Vec (&scores)[kRows]) {
    for (int d = 0; d < dim; d += 2) {
      const BitVec keys = LoadBits(tile + d * 32);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        scores[r] = DotPair(scores[r], keys, PackPair(q[r * dim + d], q[r * dim + d + 1]));
      }
    }
  }
  template <int kRows>
  static void AddValues(const std::byte* v, int dim, int begin, int end,
                        const float (&p)[kRows][kWeightStride], Vec (&acc)[kRows]) {
    for (int t = begin & ~1; t < end; t += 2) {
      const BitVec values = LoadBits(v + t * dim * 2);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = DotPair(acc[r], values, PackPair(p[r][t], p[r][t + 1]));
    }
  }
  static const std::byte* ValueColumn(const std::byte* v, int d) { return v + d * 4; }
  // The weights as the values will be multiplied with, so that their sum fits.
  static void RoundWeights(float* p, int n) {
    if (!kNativeBf16) return;
    for (int i = 0; i < n; ++i) p[i] = Bf16ToFloat(FloatToBf16(p[i]));
  }
};

// Folds the scores of one row into its running max and sum and turns them into weights, in place; tokens
// outside [lo, hi) get weight 0. Returns the factor for what the row has gathered so far.
template <typename Cache>
float UpdateSoftmax(float* p, int page_tokens, int lo, int hi, float* max, float* sum) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Vec page_max = Splat(kMinusInf);
  for (int t = 0; t < page_tokens; t += kTileTokens) {
    const IntVec token = lane + t;
    const Vec s = (token >= lo) & (token < hi) ? Load(p + t) : Splat(kMinusInf);
    Store(p + t, s);
    page_max = Max(page_max, s);
  }
  const float new_max = std::max(*max, HorizontalMax(page_max));
  Vec page_sum = {};
  for (int t = 0; t < page_tokens; t += kTileTokens) {
    Store(p + t, Exp(Load(p + t) - new_max));
    Cache::RoundWeights(p + t, kTileTokens);
    page_sum = page_sum + Load(p + t);
  }
  const float factor = Exp(Splat(*max - new_max))[0];
  *max = new_max;
  *sum = *sum * factor + HorizontalSum(page_sum);
  return factor;
}

template <typename Cache, int kRows>
void AttendRows(int page_tokens, const AttendPageArgs& args, int first_row) {
  const int dim = args.dim;
  const float* q = args.q + first_row * dim;
  alignas(64) float p[kRows][kWeightStride];
  for (int t = 0; t < page_tokens; t += kTileTokens) {
    Vec scores[kRows] = {};
    Cache::template Scores<kRows>(args.k + int64_t{t} * dim * Cache::kBytes, dim, q, scores);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) Store(&p[r][t], scores[r]);
  }
  float factor[kRows];
  int begin = page_tokens;
  int end = 0;
  for (int r = 0; r < kRows; ++r) {
    float* state = args.state[first_row + r];
    const int lo = args.lo[first_row + r];
    const int hi = args.hi[first_row + r];
    factor[r] = UpdateSoftmax<Cache>(p[r], page_tokens, lo, hi, &state[dim], &state[dim + 1]);
    begin = std::min(begin, lo);
    end = std::max(end, hi);
  }
  for (int d = 0; d < dim; d += 16) {
    Vec acc[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = Load(args.state[first_row + r] + d) * factor[r];
    Cache::template AddValues<kRows>(Cache::ValueColumn(args.v, d), dim, begin, end, p, acc);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) Store(args.state[first_row + r] + d, acc[r]);
  }
}

// 8, 4, 2, 1: few instances, and a group of four or two heads still shares its loads.
template <typename Cache>
void AttendPageOf(int page_tokens, const AttendPageArgs& args) {
  int row = 0;
  for (; row + 8 <= args.num_rows; row += 8) AttendRows<Cache, 8>(page_tokens, args, row);
  for (; row + 4 <= args.num_rows; row += 4) AttendRows<Cache, 4>(page_tokens, args, row);
  for (; row + 2 <= args.num_rows; row += 2) AttendRows<Cache, 2>(page_tokens, args, row);
  for (; row < args.num_rows; ++row) AttendRows<Cache, 1>(page_tokens, args, row);
}

void AttendPage(DType dtype, int page_tokens, const AttendPageArgs& args) {
  if (dtype == DType::kBf16) return AttendPageOf<Bf16Cache>(page_tokens, args);
  AttendPageOf<F32Cache>(page_tokens, args);
}

template <typename Cache, int kRows>
void ScoreRows(const std::byte* tile, int dim, const float* q, float* out) {
  Vec scores[kRows] = {};
  Cache::template Scores<kRows>(tile, dim, q, scores);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) Store(out + r * 16, scores[r]);
}

template <typename Cache>
void ScoreTileOf(const std::byte* tile, int dim, int num_rows, const float* q, float* out) {
  int row = 0;
  for (; row + 8 <= num_rows; row += 8) ScoreRows<Cache, 8>(tile, dim, q + row * dim, out + row * 16);
  for (; row + 4 <= num_rows; row += 4) ScoreRows<Cache, 4>(tile, dim, q + row * dim, out + row * 16);
  for (; row < num_rows; ++row) ScoreRows<Cache, 1>(tile, dim, q + row * dim, out + row * 16);
}

void ScoreTile(DType dtype, const std::byte* tile, int dim, int num_rows, const float* q,
               float* out) {
  if (dtype == DType::kBf16) return ScoreTileOf<Bf16Cache>(tile, dim, num_rows, q, out);
  ScoreTileOf<F32Cache>(tile, dim, num_rows, q, out);
}

void AddWeightedKeys(DType dtype, const std::byte* tile, int dim, const float* weights,
                     float* out) {
  const Vec w = Load(weights);
  if (dtype == DType::kBf16) {
    for (int d = 0; d < dim; d += 2) {
      const BitVec keys = LoadBits(tile + d * 32);
      out[d] += HorizontalSum(LowBf16(keys) * w);
      out[d + 1] += HorizontalSum(HighBf16(keys) * w);
    }
    return;
  }
  for (int d = 0; d < dim; ++d) {
    out[d] += HorizontalSum(Load(reinterpret_cast<const float*>(tile) + d * 16) * w);
  }
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
