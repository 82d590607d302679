// Attention over pages of bf16 on the matrix unit, its instructions emulated, beside float64.
#define FOLIO_KERNEL_NAMESPACE emulated_amx_attention
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/backend/cpu/kernels/amx_attention-inl.h"
#include "engine/base/half.h"
#include "tests/engine/emulated_tiles.h"

namespace folio::cpu::emulated_amx_attention {
namespace {

using test::EmulatedTiles;
using Floats = std::vector<float>;

// A page: keys and values of its tokens [tokens][dim], and as they lie in a cache (kv_types.h).
class Page {
 public:
  Page(int tokens, int dim, uint64_t seed)
      : tokens_(tokens), dim_(dim), k_(tokens * dim), v_(tokens * dim), slice_(2 * tokens * dim) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int t = 0; t < tokens; ++t) {
      for (int d = 0; d < dim; ++d) {
        k_[t * dim + d] = normal(random);
        v_[t * dim + d] = normal(random);
        *KeyAt(t, d) = FloatToBf16(k_[t * dim + d]);
        *ValueAt(t, d) = FloatToBf16(v_[t * dim + d]);
      }
    }
  }

  double key(int t, int d) const { return Bf16ToFloat(FloatToBf16(k_[t * dim_ + d])); }
  double value(int t, int d) const { return Bf16ToFloat(FloatToBf16(v_[t * dim_ + d])); }
  // Numbers that are none, where nothing was written yet.
  void ForgetFrom(int token) {
    for (int t = token; t < tokens_; ++t) {
      for (int d = 0; d < dim_; ++d) *KeyAt(t, d) = *ValueAt(t, d) = 0x7fc0;
    }
  }

  const std::byte* k() const { return reinterpret_cast<const std::byte*>(slice_.data()); }
  const std::byte* v() const { return k() + 2 * tokens_ * dim_; }

 private:
  uint16_t* KeyAt(int t, int d) {
    return &slice_[(t / 16 * dim_ / 2 + d / 2) * 32 + t % 16 * 2 + d % 2];
  }
  uint16_t* ValueAt(int t, int d) {
    return &slice_[tokens_ * dim_ + (t / 2 * dim_ + d) * 2 + t % 2];
  }

  const int tokens_;
  const int dim_;
  Floats k_, v_;
  std::vector<uint16_t> slice_;
};

struct Row {
  int lo = 0;
  int hi = 0;
};

struct Shape {
  int page_tokens;
  int dim;
};

// Attention of queries over two pages: what rows [first, first + count) of all of them get.
class Attention {
 public:
  Attention(Shape shape, int num_rows, uint64_t seed, float score_cap = 0)
      : shape_(shape),
        score_cap_(score_cap),
        first_(shape.page_tokens, shape.dim, seed),
        second_(shape.page_tokens, shape.dim, seed + 1) {
    std::mt19937_64 random(seed + 2);
    std::normal_distribution<float> normal;
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    for (int r = 0; r < num_rows; ++r) {
      for (int d = 0; d < shape.dim; ++d) q_.push_back(normal(random) / 4);
      const int lo = below(shape.page_tokens);
      rows_.push_back({lo, lo + 1 + below(shape.page_tokens - lo)});
    }
  }

  int end() const {
    return std::max_element(rows_.begin(), rows_.end(),
                            [](const Row& a, const Row& b) { return a.hi < b.hi; })
        ->hi;
  }
  Page* second() { return &second_; }

  // [count][dim]
  Floats ByTiles(int first, int count) const {
    const int width = shape_.dim + 2;
    Floats states(count * width);
    AttendPageArgs args;
    args.dim = shape_.dim;
    args.num_rows = count;
    args.q = &q_[first * shape_.dim];
    args.score_cap = score_cap_;
    for (int r = 0; r < count; ++r) {
      args.state[r] = &states[r * width];
      InitState(args.state[r], shape_.dim);
      // All of the first page, part of the second.
      args.lo[r] = 0;
      args.hi[r] = shape_.page_tokens;
    }
    args.k = first_.k();
    args.v = first_.v();
    args.next_k = second_.k();
    args.next_v = second_.v();
    AttendPageTiles<EmulatedTiles>(DType::kBf16, shape_.page_tokens, args);
    for (int r = 0; r < count; ++r) {
      args.lo[r] = rows_[first + r].lo;
      args.hi[r] = rows_[first + r].hi;
    }
    args.k = args.next_k = second_.k();
    args.v = args.next_v = second_.v();
    AttendPageTiles<EmulatedTiles>(DType::kBf16, shape_.page_tokens, args);
    EXPECT_FALSE(EmulatedTiles::configured());
    Floats out;
    for (int r = 0; r < count; ++r) {
      for (int d = 0; d < shape_.dim; ++d) {
        out.push_back(args.state[r][d] / args.state[r][shape_.dim + 1]);
      }
    }
    return out;
  }

  // One row in float64, and the sum of the magnitudes of what it adds.
  void Expect(int row, const float* out) const {
    std::vector<double> scores;
    const auto score = [&](const Page& page, int t) {
      double sum = 0;
      for (int d = 0; d < shape_.dim; ++d) {
        sum += page.key(t, d) * Bf16ToFloat(FloatToBf16(q_[row * shape_.dim + d]));
      }
      return std::exp(score_cap_ > 0 ? score_cap_ * std::tanh(sum / score_cap_) : sum);
    };
    double total = 0;
    std::vector<double> sums(shape_.dim), magnitudes(shape_.dim);
    const auto add = [&](const Page& page, int t) {
      const double weight = score(page, t);
      total += weight;
      for (int d = 0; d < shape_.dim; ++d) {
        sums[d] += weight * page.value(t, d);
        magnitudes[d] += weight * std::fabs(page.value(t, d));
      }
    };
    for (int t = 0; t < shape_.page_tokens; ++t) add(first_, t);
    for (int t = rows_[row].lo; t < rows_[row].hi; ++t) add(second_, t);
    // Weights are rounded to eight bits, which their sum knows.
    for (int d = 0; d < shape_.dim; ++d) {
      ASSERT_NEAR(out[d], sums[d] / total, 0x1p-8 * magnitudes[d] / total)
          << "row " << row << ", dimension " << d;
    }
  }

 private:
  const Shape shape_;
  const float score_cap_;
  Page first_, second_;
  Floats q_;
  std::vector<Row> rows_;
};

class AmxAttention : public testing::TestWithParam<Shape> {};

TEST_P(AmxAttention, IsASoftmaxOverBothPages) {
  for (const int rows : {1, 8, 16, 17, 32, 45, kPageRows}) {
    const Attention attention(GetParam(), rows, rows);
    const Floats out = attention.ByTiles(0, rows);
    for (int row = 0; row < rows; ++row) attention.Expect(row, &out[row * GetParam().dim]);
  }
}

TEST_P(AmxAttention, ScoresAreCappedWhereACapIsGiven) {
  for (const float cap : {0.5f, 3.0f, 50.0f}) {
    const Attention attention(GetParam(), 17, 3, cap);
    const Floats out = attention.ByTiles(0, 17);
    for (int row = 0; row < 17; ++row) attention.Expect(row, &out[row * GetParam().dim]);
  }
}

TEST_P(AmxAttention, ARowHasTheSameBitsAloneAndBesideOthers) {
  const int dim = GetParam().dim;
  const Attention attention(GetParam(), kPageRows, 7);
  const Floats all = attention.ByTiles(0, kPageRows);
  for (const int count : {1, 5, 20}) {
    for (int row = 0; row + count <= kPageRows; row += 11) {
      const Floats some = attention.ByTiles(row, count);
      ASSERT_EQ(some, Floats(&all[row * dim], &all[row * dim] + count * dim))
          << count << " rows from " << row;
    }
  }
}

TEST_P(AmxAttention, WhatNobodySeesNeedNotBeNumbers) {
  Attention attention(GetParam(), 3, 5);
  const Floats before = attention.ByTiles(0, 3);
  // Tokens are written in pairs.
  attention.second()->ForgetFrom((attention.end() + 1) / 2 * 2);
  EXPECT_EQ(attention.ByTiles(0, 3), before);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxAttention,
                         testing::Values(Shape{16, 16}, Shape{64, 64}, Shape{128, 80},
                                         Shape{48, 112}, Shape{32, 256}, Shape{256, 32}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.page_tokens) + "tokens" +
                                  std::to_string(shape.param.dim) + "dims";
                         });

}  // namespace
}  // namespace folio::cpu::emulated_amx_attention
