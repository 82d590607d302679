// Attention of a few queries over one page. A key or value is loaded once for all of them; each
// query's arithmetic is the same whatever the others are.
#pragma once

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/backend/cpu/kernels/exp-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

constexpr int kTileTokens = 16;

// Tiles, or sixteens of dimensions, that some rows have sums for at a time.
constexpr int ColumnsFor(int rows) { return std::max(1, kSums / rows); }

// Row stride of the weights: a page and one line more, so that eight rows do not share one cache
// set.
constexpr int kWeightStride = kMaxPageTokens + kTileTokens;

// e^(score - max) where weights are rounded to bf16 or 8 bits.
FOLIO_INLINE Vec WeightOf(Vec score, float max) {
  constexpr float kLog2E = 1.44269504f;
  return PowerOfTwo(Fma(score, kLog2E, Splat(max * -kLog2E)));
}

// A cache of fp32 values: keys of a tile [dim][16], values [tokens][dim].
struct F32Cache {
  static constexpr int kBytes = 4;
  static constexpr int kStep = 1;  // dims or tokens per operand
  using Operand = float;
  static constexpr int kParts = 1;
  static FOLIO_INLINE Vec LoadPart(const std::byte* p, int /*part*/) {
    return Load(reinterpret_cast<const float*>(p));
  }
  static FOLIO_INLINE Vec Add(Vec sum, Vec line, Operand x, int /*part*/) {
    return Fma(line, x, sum);
  }
  static FOLIO_INLINE Vec Weight(Vec score, float max) { return Exp(score - Splat(max)); }
};

// A cache of bf16 pairs: keys of a tile [dim/2][16][2], values [tokens/2][dim][2].
struct Bf16Cache {
  static constexpr int kBytes = 2;
  static constexpr int kStep = 2;
  using Operand = Pair;
  static constexpr int kParts = kPairParts;
  static FOLIO_INLINE auto LoadPart(const std::byte* p, int part) { return LoadPairPart(p, part); }
  template <typename Line>
  static FOLIO_INLINE Vec Add(Vec sum, Line line, Operand x, int part) {
    return AddPairPart(sum, line, x, part);
  }
  static FOLIO_INLINE Vec Weight(Vec score, float max) {
    return RoundToPairs(WeightOf(score, max));
  }
};

// The values of kRows rows as operands, a row every `stride` operands.
template <typename Cache, int kRows>
class Operands {
 public:
  using Operand = typename Cache::Operand;

  // x [kRows][row_floats], of which [begin, end) of each row count; x must outlive this.
  Operands(const float* x, int row_floats, int begin, int end)
      : stride_(row_floats / Cache::kStep) {
    if constexpr (Cache::kStep == 1) {
      data_ = x;
    } else if constexpr (!kNativeBf16) {
      data_ = reinterpret_cast<const Operand*>(x);
    } else {
      for (int r = 0; r < kRows; ++r) {
        PackPairs(x + r * row_floats + begin, end - begin, packed_ + r * stride_ + begin / 2);
      }
      data_ = packed_;
    }
  }
  Operands(const Operands&) = delete;

  Operand Get(int row, int step) const { return data_[row * stride_ + step]; }

 private:
  static constexpr int kPacked = kNativeBf16 && Cache::kStep == 2 ? kRows * kWeightStride / 2 : 1;
  const Operand* data_;
  const int stride_;
  alignas(64) Operand packed_[kPacked];
};

// sums[c][r] += line (step, c) * operand (r, step) for steps [begin, end): the inner loop of scores
// (steps are dims, columns are tiles of tokens) and of values (steps are tokens, columns are
// sixteen dims each). Each (c, r) is one chain in ascending order, whatever runs beside it.
//   lines    of step s and column c at data + s * step_bytes + c * column_bytes, 64 bytes
//   next     laid out as data, prefetched
template <typename Cache, int kRows, int kColumns>
FOLIO_INLINE void Accumulate(const std::byte* data, const std::byte* next, int64_t step_bytes,
                             int64_t column_bytes, int begin, int end,
                             const Operands<Cache, kRows>& x, Vec (&sums)[kColumns][kRows]) {
  for (int s = begin; s < end; ++s) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = s * step_bytes + c * column_bytes;
      Fetch(next + at);
#pragma GCC unroll 2
      for (int part = 0; part < Cache::kParts; ++part) {
        const auto line = Cache::LoadPart(data + at, part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sums[c][r] = Cache::Add(sums[c][r], line, x.Get(r, s), part);
        }
      }
    }
  }
}

// Scores of tiles [tile, num_tiles): out[r * out_stride + token].
template <typename Cache, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void ScoreTiles(const std::byte* k, const std::byte* next, int dim, int tile,
                             int num_tiles, const Operands<Cache, kRows>& q, float* out,
                             int out_stride) {
  const int64_t tile_bytes = int64_t{kTileTokens} * dim * Cache::kBytes;
  for (; tile + kColumns <= num_tiles; tile += kColumns) {
    Vec sums[kColumns][kRows] = {};
    Accumulate<Cache, kRows, kColumns>(k + tile * tile_bytes, next + tile * tile_bytes, 64,
                                       tile_bytes, 0, dim / Cache::kStep, q, sums);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Store(out + r * out_stride + (tile + c) * kTileTokens, sums[c][r]);
      }
    }
  }
  if constexpr (kColumns > 1) {
    ScoreTiles<Cache, kRows, kColumns / 2>(k, next, dim, tile, num_tiles, q, out, out_stride);
  }
}

// Adds the weighted values of tokens [begin, end) to the states of the rows, dims [d, dim).
template <typename Cache, int kRows, int kColumns = ColumnsFor(kRows)>
FOLIO_INLINE void AddValues(const AttendPageArgs& args, const std::byte* next_v, int first_row,
                            int d, int begin, int end, const Operands<Cache, kRows>& p,
                            const float* factors) {
  const int dim = args.dim;
  for (; d + kColumns * 16 <= dim; d += kColumns * 16) {
    Vec sums[kColumns][kRows];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[c][r] = Load(args.state[first_row + r] + d + c * 16) * Splat(factors[r]);
      }
    }
    Accumulate<Cache, kRows, kColumns>(args.v + int64_t{d} * 4, next_v + int64_t{d} * 4,
                                       int64_t{dim} * 4, 64, begin / Cache::kStep,
                                       (end + Cache::kStep - 1) / Cache::kStep, p, sums);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) Store(args.state[first_row + r] + d + c * 16, sums[c][r]);
    }
  }
  if constexpr (kColumns > 1) {
    AddValues<Cache, kRows, kColumns / 2>(args, next_v, first_row, d, begin, end, p, factors);
  }
}

// Tokens of a page, whole tiles.
struct TokenRange {
  int begin = 0;
  int end = 0;
};

// Those that hold what any of kRows rows sees.
template <int kRows>
FOLIO_INLINE TokenRange SeenTokens(const AttendPageArgs& args, int first_row) {
  TokenRange seen = {args.lo[first_row], args.hi[first_row]};
  for (int row = first_row + 1; row < first_row + kRows; ++row) {
    seen.begin = std::min(seen.begin, args.lo[row]);
    seen.end = std::max(seen.end, args.hi[row]);
  }
  return {seen.begin / kTileTokens * kTileTokens,
          (seen.end + kTileTokens - 1) / kTileTokens * kTileTokens};
}

// cap * tanh(score / cap) of one row, as cap - 2 cap / (e^(2 score / cap) + 1), which is cap from
// an exponent of 40 on.
void CapScores(float* scores, TokenRange tokens, float cap) {
  for (int t = tokens.begin; t < tokens.end; t += kTileTokens) {
    const Vec exponent = Zero() - Max(Load(scores + t) * Splat(-2 / cap), Splat(-40.0f));
    Store(scores + t, Splat(cap) - Splat(2 * cap) / (Exp(exponent) + Splat(1.0f)));
  }
}

// Adds the biases of one row (ALiBi).
void AddBias(float* scores, TokenRange tokens, float offset, float slope) {
  for (int t = tokens.begin; t < tokens.end; t += kTileTokens) {
    Store(scores + t, AddRamp(Load(scores + t), t, offset, slope));
  }
}

// What bends the scores of a row before the softmax.
FOLIO_INLINE void PrepareScores(TokenRange tokens, const AttendPageArgs& args, int row,
                                float* scores) {
  if (args.score_cap > 0) CapScores(scores, tokens, args.score_cap);
  if (args.biased) AddBias(scores, tokens, args.bias[row], args.bias_slope[row]);
}

// The largest of number(t), of tokens [t, t + 16), in one of the lanes; hides the scores of tokens
// outside [lo, hi).
template <typename NumberFn>
FOLIO_INLINE Vec MaxScores(float* scores, TokenRange tokens, int lo, int hi, NumberFn number) {
  Vec max = Splat(-std::numeric_limits<float>::infinity());
  const bool all = lo <= tokens.begin && hi >= tokens.end;
  for (int t = tokens.begin; t < tokens.end; t += kTileTokens) {
    if (!all) Store(scores + t, MaskOutside(Load(scores + t), t, lo, hi));
    max = Max(max, number(t));
  }
  return max;
}

// Turns the masked scores of one row into weights, in place, as they will be multiplied; returns
// their sum, in parts.
template <typename Cache>
FOLIO_INLINE Vec Weigh(float* p, TokenRange tokens, float max) {
  Vec sum = Zero();
  for (int t = tokens.begin; t < tokens.end; t += kTileTokens) {
    const Vec weight = Cache::Weight(Load(p + t), max);
    Store(p + t, weight);
    sum = sum + weight;
  }
  return sum;
}

// What the scores of some rows of a page have changed in their running softmaxes.
struct PageFold {
  alignas(64) float factors[16];  // per row: for what was added before
  // Tokens that any of the rows sees.
  int begin = 0;
  int end = 0;
};

// Turns the scores of `count` <= kRows rows into weights and updates maxima and sums:
// weigh(r, max) does it for one row and returns the sum of its weights, in parts. No row sees what
// lies outside of `tokens`.
template <int kRows, typename WeighFn>
FOLIO_INLINE PageFold FoldScores(TokenRange tokens, const AttendPageArgs& args, int first_row,
                                 int count, float (*scores)[kWeightStride], WeighFn weigh) {
  const int dim = args.dim;
  alignas(64) float max[16] = {};
  alignas(64) float sums[16] = {};
  alignas(64) float lanes[16][16];
  for (int r = count; r < kRows; ++r) Store(lanes[r], Zero());
  PageFold fold;
  fold.begin = tokens.end;
  for (int r = 0; r < count; ++r) {
    const int row = first_row + r;
    PrepareScores(tokens, args, row, scores[r]);
    Store(lanes[r], MaxScores(scores[r], tokens, args.lo[row], args.hi[row],
                              [&](int t) { return Load(scores[r] + t); }));
    max[r] = args.state[row][dim];
    sums[r] = args.state[row][dim + 1];
    fold.begin = std::min(fold.begin, args.lo[row]);
    fold.end = std::max(fold.end, args.hi[row]);
  }
  const Vec old_max = Load(max);
  const Vec new_max = Max(old_max, MaxOfRows<kRows>(lanes));
  const Vec factors = Exp(old_max - new_max);
  Store(fold.factors, factors);
  Store(max, new_max);
  for (int r = 0; r < count; ++r) Store(lanes[r], weigh(r, max[r]));
  Store(sums, Load(sums) * factors + SumsOfRows<kRows>(lanes));
  for (int r = 0; r < count; ++r) {
    args.state[first_row + r][dim] = max[r];
    args.state[first_row + r][dim + 1] = sums[r];
  }
  return fold;
}

// The same of all kRows rows, by vectors and in place.
template <typename Cache, int kRows>
FOLIO_INLINE PageFold FoldScores(TokenRange tokens, const AttendPageArgs& args, int first_row,
                                 float (*p)[kWeightStride]) {
  return FoldScores<kRows>(tokens, args, first_row, kRows, p,
                           [&](int r, float max) { return Weigh<Cache>(p[r], tokens, max); });
}

template <typename Cache, int kRows>
void AttendRows(const AttendPageArgs& args, int first_row) {
  const int dim = args.dim;
  const TokenRange tokens = SeenTokens<kRows>(args, first_row);
  alignas(64) float p[kRows][kWeightStride];
  const Operands<Cache, kRows> q(args.q + first_row * dim, dim, 0, dim);
  // Only the first rows of a page fetch what comes next.
  ScoreTiles<Cache, kRows>(args.k, first_row == 0 ? args.next_k : args.k, dim,
                           tokens.begin / kTileTokens, tokens.end / kTileTokens, q, p[0],
                           kWeightStride);
  const PageFold fold = FoldScores<Cache, kRows>(tokens, args, first_row, p);
  const Operands<Cache, kRows> weights(p[0], kWeightStride, tokens.begin, tokens.end);
  AddValues<Cache, kRows>(args, first_row == 0 ? args.next_v : args.v, first_row, 0, fold.begin,
                          fold.end, weights, fold.factors);
}

// As many rows at a time as there are sums in registers, then powers of two: few instances, and a
// group of four or two heads still shares its loads.
constexpr int FewerRows(int rows) { return static_cast<int>(std::bit_floor(rows - 1u)); }

template <typename Cache, int kRows = kMaxRows>
void AttendPageOf(const AttendPageArgs& args, int row = 0) {
  for (; row + kRows <= args.num_rows; row += kRows) AttendRows<Cache, kRows>(args, row);
  if constexpr (kRows > 1) AttendPageOf<Cache, FewerRows(kRows)>(args, row);
}

void AttendPage(DType dtype, int /*page_tokens*/, const AttendPageArgs& args) {
  if (dtype == DType::kBf16) return AttendPageOf<Bf16Cache>(args);
  AttendPageOf<F32Cache>(args);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
