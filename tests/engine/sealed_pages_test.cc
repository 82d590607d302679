// Attention over pages of integers of 8 or 4 bits, on every instruction set beside float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/sealed_codec.h"
#include "tests/engine/open_slice.h"

namespace folio::test {
namespace {

// One page on one instruction set.
class SealedPages : public testing::TestWithParam<std::tuple<Isa, int, int, int>> {
 protected:
  static constexpr int kRows = 7;
  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "this CPU has no " << IsaName(isa_);
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    slice_ = std::make_unique<OpenSlice>(geometry_);
    for (int t = 0; t < geometry_.page_tokens; ++t) {
      for (int d = 0; d < geometry_.head_dim; ++d) {
        slice_->SetKey(t, d, normal(random) * (d == 3 ? 20.0f : 1.0f));
        slice_->SetValue(t, d, normal(random));
      }
    }
    sealed_.resize(geometry_.sealed_slice_bytes());
    SealSlice(geometry_, slice_->bytes.data(), sealed_.data());
    queries_.resize(kRows * geometry_.padded_dim);
    for (int r = 0; r < kRows; ++r) {
      for (int d = 0; d < geometry_.head_dim; ++d) {
        queries_[r * geometry_.padded_dim + d] = 0.3f * normal(random);
      }
    }
  }
  // Rows [first, end) together, folded twice: into an empty state and into that.
  std::vector<Floats> Attend(int first, int end) const {
    std::vector<Floats> states = EmptyStates(end - first);
    for (int n = 0; n < 2; ++n) Fold(first, &states);
    return states;
  }
  std::vector<Floats> EmptyStates(int num_rows) const {
    std::vector<Floats> states(num_rows, Floats(geometry_.padded_dim + 2));
    for (Floats& state : states) cpu::InitState(state.data(), geometry_.padded_dim);
    return states;
  }
  // The page into the states of rows [first, first + size).
  void Fold(int first, std::vector<Floats>* states) const {
    const SealedSlice parts(geometry_, sealed_.data());
    cpu::AttendPageArgs args;
    args.k = args.next_k = parts.keys;
    args.v = args.next_v = parts.values;
    args.k_scales = parts.key_scales;
    args.v_scales = parts.value_scales;
    args.dim = geometry_.padded_dim;
    args.num_rows = static_cast<int>(states->size());
    args.q = &queries_[first * geometry_.padded_dim];
    for (int r = 0; r < args.num_rows; ++r) {
      args.state[r] = (*states)[r].data();
      args.lo[r] = Lo(first + r);
      args.hi[r] = Hi(first + r);
    }
    cpu::KernelsFor(isa_).attend_sealed_page(geometry_.sealed_bits, geometry_.page_tokens, args);
  }
  int Lo(int row) const { return row % 3 == 0 ? 0 : row; }
  int Hi(int row) const {
    if (row == hides_) return 0;
    return row % 2 == 0 ? geometry_.page_tokens : row + 1 + row % 4;
  }

  // What rows [0, num_rows) of pages attend to, in float64, and the largest value of their tokens.
  struct Expected {
    std::vector<std::vector<double>> sums;
    std::vector<double> weights;
    double most = 0;
  };
  Expected NothingExpected() const {
    return {std::vector(kRows, std::vector<double>(geometry_.head_dim)),
            std::vector<double>(kRows)};
  }
  void AddExpected(Expected* expected) const {
    const KvGeometry& g = geometry_;
    for (size_t r = 0; r < expected->sums.size(); ++r) {
      for (int t = Lo(r); t < Hi(r); ++t) {
        double score = 0;
        for (int d = 0; d < g.head_dim; ++d) {
          score += double{queries_[r * g.padded_dim + d]} * slice_->Key(t, d);
        }
        expected->weights[r] += std::exp(score);
        for (int d = 0; d < g.head_dim; ++d) {
          expected->sums[r][d] += std::exp(score) * slice_->Value(t, d);
          expected->most = std::max(expected->most, std::fabs(double{slice_->Value(t, d)}));
        }
      }
    }
  }

  const Isa isa_ = std::get<0>(GetParam());
  const KvGeometry geometry_ =
      Geometry(std::get<1>(GetParam()), std::get<2>(GetParam()), std::get<3>(GetParam()));
  std::unique_ptr<OpenSlice> slice_;
  std::vector<std::byte> sealed_;
  Floats queries_;
  int hides_ = -1;  // this row from the page
};

// x as integers of 8 bits with the scale that undoes it, by the definition of their rounding.
std::pair<std::vector<int>, double> Rounded(const Floats& x) {
  float most = 0;
  for (const float number : x) most = std::max(most, std::fabs(number));
  std::vector<int> integers;
  for (const float number : x) {
    integers.push_back(static_cast<int>(std::nearbyint(number * (127.0f / most))));
  }
  return {integers, most / 127.0f};
}

// The definition in docs/methods.md, section 14, in float64. A weight that lies between two
// integers may become the other one.
TEST_P(SealedPages, AttentionIsThatOfItsDefinition) {
  const KvGeometry& g = geometry_;
  const auto states = Attend(0, kRows);
  double errors = 0;
  for (int r = 0; r < kRows; ++r) {
    Floats turned(g.head_dim);
    for (int d = 0; d < g.head_dim; ++d) {
      const float scale = Defined(0, LargestKey(*slice_, d), g.sealed_bits).second;
      turned[d] = queries_[r * g.padded_dim + d] * scale;
    }
    const auto [query, query_scale] = Rounded(turned);
    std::vector<double> scores(g.page_tokens, -INFINITY);
    for (int t = Lo(r); t < Hi(r); ++t) {
      int sum = 0;
      for (int d = 0; d < g.head_dim; ++d) {
        sum += query[d] * Defined(slice_->Key(t, d), LargestKey(*slice_, d), g.sealed_bits).first;
      }
      scores[t] = sum * query_scale;
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    Floats weighed(g.page_tokens);
    for (int t = 0; t < g.page_tokens; ++t) {
      const double weight = std::exp(scores[t] - most);
      total += weight;
      weighed[t] =
          static_cast<float>(weight) * Defined(0, LargestOfValue(*slice_, t), g.sealed_bits).second;
    }
    const auto [weights, weight_scale] = Rounded(weighed);
    for (int d = 0; d < g.head_dim; ++d) {
      int sum = 0;
      for (int t = 0; t < g.page_tokens; ++t) {
        const float largest = LargestOfValue(*slice_, t);
        sum += weights[t] * Defined(slice_->Value(t, d), largest, g.sealed_bits).first;
      }
      const double error = states[r][d] / states[r][g.padded_dim + 1] - sum * weight_scale / total;
      ASSERT_NEAR(error, 0, 2e-2) << r << " " << d;
      errors += std::fabs(error);
    }
  }
  EXPECT_LE(errors / (kRows * g.head_dim), 1e-4);
}

// Where no channel is much larger than others, the rounding costs little.
TEST_P(SealedPages, AttentionIsCloseToThatOfTheNumbersThemselves) {
  const KvGeometry& g = geometry_;
  for (int t = 0; t < g.page_tokens; ++t) slice_->SetKey(t, 3, slice_->Key(t, 3) / 20);
  SealSlice(g, slice_->bytes.data(), sealed_.data());
  const auto states = Attend(0, kRows);
  Expected expected = NothingExpected();
  AddExpected(&expected);
  double errors = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < g.head_dim; ++d) {
      errors += std::fabs(states[r][d] / states[r][g.padded_dim + 1] -
                          expected.sums[r][d] / expected.weights[r]);
    }
  }
  EXPECT_LE(errors / (kRows * g.head_dim), g.sealed_bits == 8 ? 0.01 : 0.15);
}

// Pages of values of all sizes one after the other, the largest scores in any of them: as tokens
// that take up attention and have almost no value.
TEST_P(SealedPages, ValuesOfAnySizeMayFollowEachOther) {
  const KvGeometry& g = geometry_;
  for (int t = 0; t < g.page_tokens; ++t) slice_->SetKey(t, 3, slice_->Key(t, 3) / 20);
  const OpenSlice first = *slice_;
  auto states = EmptyStates(kRows);
  Expected expected = NothingExpected();
  for (const auto& [value_factor, key_factor] :
       std::vector<std::pair<float, float>>{{1e-6f, 1.0f},
                                            {1.0f, 1.0f},
                                            {0.0f, 1.5f},
                                            {1e-35f, 1.0f},
                                            {100.0f, 0.5f},
                                            {1.0f, 1.2f}}) {
    for (int t = 0; t < g.page_tokens; ++t) {
      for (int d = 0; d < g.head_dim; ++d) {
        slice_->SetValue(t, d, first.Value(t, d) * value_factor);
        slice_->SetKey(t, d, first.Key(t, d) * key_factor);
      }
    }
    SealSlice(g, slice_->bytes.data(), sealed_.data());
    Fold(0, &states);
    AddExpected(&expected);
  }
  double errors = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < g.head_dim; ++d) {
      errors += std::fabs(states[r][d] / states[r][g.padded_dim + 1] -
                          expected.sums[r][d] / expected.weights[r]);
    }
  }
  EXPECT_LE(errors / (kRows * g.head_dim) / expected.most, g.sealed_bits == 8 ? 0.002 : 0.03);
}

// As a row whose window has passed a page that others of its block see.
TEST_P(SealedPages, ARowThatSeesNothingIsLeftAsItIs) {
  hides_ = 1;
  const auto nothing = Attend(0, 3)[1];
  EXPECT_EQ(Floats(nothing.begin(), nothing.end() - 2), Floats(geometry_.padded_dim));
  EXPECT_EQ(nothing.back(), 0.0f);
  std::vector<Floats> after(1, nothing);
  hides_ = -1;
  Fold(1, &after);
  auto fresh = EmptyStates(1);
  Fold(1, &fresh);
  EXPECT_EQ(after, fresh);
  hides_ = 1;
  Fold(1, &after);
  EXPECT_EQ(after, fresh);
}

// As a token leaves them whose hidden state was not finite.
TEST_P(SealedPages, ARowThatSeesWhatIsNotFiniteIsNotFinite) {
  const OpenSlice good = *slice_;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const bool key_too : {true, false}) {
      *slice_ = good;
      if (key_too) slice_->SetKey(5, 3, bad);
      slice_->SetValue(5, 3, bad);
      SealSlice(geometry_, slice_->bytes.data(), sealed_.data());
      EXPECT_FALSE(std::isfinite(Attend(0, 1)[0][3])) << bad << " " << key_too;
    }
  }
}

TEST_P(SealedPages, ARowIsTheSameAloneAndBesideOthers) {
  const auto together = Attend(0, kRows);
  for (int r = 0; r < kRows; ++r) EXPECT_EQ(Attend(r, r + 1)[0], together[r]) << r;
  EXPECT_EQ(Attend(1, 4)[1], together[2]);
}

INSTANTIATE_TEST_SUITE_P(Kernels, SealedPages,
                         testing::Combine(testing::ValuesIn(kAllIsas), testing::Values(8, 4),
                                          testing::Values(16, 48, 128),
                                          testing::Values(16, 64, 128)),
                         [](const auto& info) {
                           return absl::StrCat(
                               IsaName(std::get<0>(info.param)), "_int", std::get<1>(info.param),
                               "_dim", std::get<2>(info.param), "_page", std::get<3>(info.param));
                         });

// All of its sums are exact: every instruction set has the same integers.
TEST(SealedPagesOfEveryIsa, ScoresAreTheSameBits) {
  const KvGeometry g = Geometry(8, 64, 16);
  const OpenSlice slice = RandomSlice(g, 5);
  std::vector<std::byte> sealed(g.sealed_slice_bytes());
  SealSlice(g, slice.bytes.data(), sealed.data());
  const SealedSlice parts(g, sealed.data());
  Floats query(64);
  for (int d = 0; d < 64; ++d) query[d] = 1e-5f * static_cast<float>(d - 30);
  Floats first;
  for (const Isa isa : kAllIsas) {
    if (!CpuSupports(isa)) continue;
    Floats state(66);
    cpu::InitState(state.data(), 64);
    cpu::AttendPageArgs args;
    args.k = args.next_k = parts.keys;
    args.v = args.next_v = parts.values;
    args.k_scales = parts.key_scales;
    args.v_scales = parts.value_scales;
    args.dim = 64;
    args.num_rows = 1;
    args.q = query.data();
    args.state[0] = state.data();
    args.lo[0] = 5;
    args.hi[0] = 6;  // a single token: its score is the maximum, and its value the answer
    cpu::KernelsFor(isa).attend_sealed_page(8, 16, args);
    if (first.empty()) first = state;
    EXPECT_EQ(state[64], first[64]) << IsaName(isa);
    for (int d = 0; d < 64; ++d) {
      const float value = state[d] / state[65];
      const float of_first = first[d] / first[65];
      EXPECT_NEAR(value, of_first, 1e-6f * std::fabs(of_first)) << IsaName(isa) << " " << d;
    }
  }
}

}  // namespace
}  // namespace folio::test
