// Pages of integers of 8 or 4 bits: the stored form beside its definition (kv_types.h,
// sealed_codec.h), and attention on every instruction set beside float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/sealed_codec.h"
#include "engine/base/half.h"
#include "engine/types/geometry_check.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Floats = std::vector<float>;

KvGeometry Geometry(int bits, int head_dim, int page_tokens, bool paired = false) {
  KvGeometry geometry = KvGeometry::Make({.num_layers = 1,
                                          .num_heads = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = head_dim,
                                          .paired_keys = paired},
                                         page_tokens, DType::kBf16);
  geometry.sealed_bits = bits;
  return geometry;
}

// Where the layouts of kv_types.h have a number of a key or value: its index, in numbers, where
// `rows` dims of keys, or tokens of values, lie side by side: two in open pages, four in complete
// ones.
int64_t KeyIndex(const KvGeometry& g, int token, int d, int rows) {
  const int64_t line = int64_t{token} / 16 * (g.padded_key_dim() / rows) + d / rows;
  return (line * 16 + token % 16) * rows + d % rows;
}
int64_t ValueIndex(const KvGeometry& g, int token, int d, int rows) {
  return (int64_t{token} / rows * g.padded_dim + d) * rows + token % rows;
}
// The same of 4 bits: the byte, and whether the number is its low bits.
std::pair<int64_t, bool> KeyNibble(const KvGeometry& g, int token, int d) {
  const int64_t line = int64_t{token} / 16 * (g.padded_key_dim() / 8) + d / 8;
  return {(line * 16 + token % 16) * 4 + d % 4, d / 4 % 2 == 0};
}
std::pair<int64_t, bool> ValueNibble(const KvGeometry& g, int token, int d) {
  return {(int64_t{token} / 8 * g.padded_dim + d) * 4 + token % 4, token / 4 % 2 == 0};
}

struct OpenSlice {
  explicit OpenSlice(const KvGeometry& g) : geometry(g), bytes(g.slice_bytes()) {}
  OpenSlice(const OpenSlice&) = default;
  OpenSlice& operator=(const OpenSlice& other) {  // of the same geometry
    bytes = other.bytes;
    return *this;
  }
  void SetKey(int token, int d, float x) { Set(KeyIndex(geometry, token, d, 2), x); }
  void SetValue(int token, int d, float x) {
    Set(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d, 2), x);
  }
  float Key(int token, int d) const { return Get(KeyIndex(geometry, token, d, 2)); }
  float Value(int token, int d) const {
    return Get(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d, 2));
  }

  const KvGeometry geometry;
  std::vector<std::byte> bytes;

 private:
  void Set(int64_t at, float x) {
    const uint16_t bits = FloatToBf16(x);
    std::memcpy(&bytes[at * 2], &bits, 2);
  }
  float Get(int64_t at) const {
    uint16_t bits;
    std::memcpy(&bits, &bytes[at * 2], 2);
    return Bf16ToFloat(bits);
  }
};

int StoredDim(const KvGeometry& g) { return g.paired_keys ? g.head_dim / 2 : g.head_dim; }

// Numbers of all sizes: channels that are zero, tiny and huge.
OpenSlice RandomSlice(const KvGeometry& g, uint64_t seed) {
  OpenSlice slice(g);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int t = 0; t < g.page_tokens; ++t) {
    for (int d = 0; d < StoredDim(g); ++d) {
      const float size = d == 0 ? 0.0f : d == 1 ? 1e-35f : d == 2 ? 1e4f : 1.0f;
      slice.SetKey(t, d, size * normal(random));
    }
    const float size = t == 0 ? 0.0f : t == 1 ? 300.0f : 1.0f;
    for (int d = 0; d < g.head_dim; ++d) slice.SetValue(t, d, size * normal(random));
  }
  return slice;
}

// The definition: {integer, scale} of x among numbers of which m is the largest magnitude.
std::pair<int, float> Defined(float x, float m, int bits) {
  const float n = bits == 8 ? 127.0f : 7.0f;
  if (m <= 1e-30f) return {0, m / n};
  return {static_cast<int>(std::nearbyint(x * (n / m))), m / n};
}
float LargestKey(const OpenSlice& slice, int d) {
  float m = 0;
  for (int t = 0; t < slice.geometry.page_tokens; ++t) m = std::max(m, std::fabs(slice.Key(t, d)));
  return m;
}
float LargestOfValue(const OpenSlice& slice, int token) {
  float m = 0;
  for (int d = 0; d < slice.geometry.head_dim; ++d)
    m = std::max(m, std::fabs(slice.Value(token, d)));
  return m;
}

class SealedSlices : public testing::TestWithParam<std::tuple<int, int, int, bool>> {
 protected:
  const int bits_ = std::get<0>(GetParam());
  const KvGeometry geometry_ =
      Geometry(bits_, std::get<1>(GetParam()), std::get<2>(GetParam()), std::get<3>(GetParam()));
  const OpenSlice open_ = RandomSlice(geometry_, 7);
  const std::vector<std::byte> sealed_ = [this] {
    std::vector<std::byte> sealed(geometry_.sealed_slice_bytes(), std::byte{0xa5});
    SealSlice(geometry_, open_.bytes.data(), sealed.data());
    return sealed;
  }();
  int IntegerAt(int64_t base, int64_t index, std::pair<int64_t, bool> nibble) const {
    if (bits_ == 8) return static_cast<int8_t>(sealed_[base + index]);
    const auto byte = static_cast<int>(sealed_[base + nibble.first]);
    return (nibble.second ? byte & 15 : byte >> 4) - 8;
  }
};

TEST_P(SealedSlices, HoldTheIntegersAndScalesOfTheirDefinition) {
  const KvGeometry& g = geometry_;
  const SealedSlice parts(g, sealed_.data());
  for (int t = 0; t < g.page_tokens; ++t) {
    for (int d = 0; d < StoredDim(g); ++d) {
      const auto [integer, scale] = Defined(open_.Key(t, d), LargestKey(open_, d), bits_);
      ASSERT_EQ(IntegerAt(0, KeyIndex(g, t, d, 4), KeyNibble(g, t, d)), integer) << t << " " << d;
      ASSERT_EQ(parts.key_scales[d], scale) << d;
    }
    for (int d = 0; d < g.head_dim; ++d) {
      const auto [integer, scale] = Defined(open_.Value(t, d), LargestOfValue(open_, t), bits_);
      ASSERT_EQ(IntegerAt(g.sealed_key_bytes(), ValueIndex(g, t, d, 4), ValueNibble(g, t, d)),
                integer)
          << t << " " << d;
      ASSERT_EQ(parts.value_scales[t], scale) << t;
    }
  }
}

TEST_P(SealedSlices, AreReadAsIntegersTimesScales) {
  const KvGeometry& g = geometry_;
  OpenSlice read(g);
  UnsealSlice(g, sealed_.data(), read.bytes.data());
  Floats value(g.head_dim);
  for (int t = 0; t < g.page_tokens; ++t) {
    ReadSealedValue(g, sealed_.data(), t, value.data());
    for (int d = 0; d < g.head_dim; ++d) {
      const auto [integer, scale] = Defined(open_.Value(t, d), LargestOfValue(open_, t), bits_);
      const float number = static_cast<float>(integer) * scale;
      ASSERT_EQ(value[d], number);
      ASSERT_EQ(read.Value(t, d), Bf16ToFloat(FloatToBf16(number)));
    }
    for (int d = 0; d < StoredDim(g); ++d) {
      const auto [integer, scale] = Defined(open_.Key(t, d), LargestKey(open_, d), bits_);
      ASSERT_EQ(read.Key(t, d), Bf16ToFloat(FloatToBf16(static_cast<float>(integer) * scale)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SealedSlices,
                         testing::Values(std::tuple(8, 64, 64, false), std::tuple(8, 40, 16, false),
                                         std::tuple(8, 64, 32, true), std::tuple(4, 64, 64, false),
                                         std::tuple(4, 40, 16, false),
                                         std::tuple(4, 256, 256, false),
                                         std::tuple(4, 64, 32, true)));

// An answer that rests on a number that is not finite has to fail, not to be wrong.
TEST_P(SealedSlices, WhatIsNotFiniteStaysSo) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    OpenSlice open = open_;
    open.SetKey(3, 5, bad);
    open.SetValue(7, 2, bad);
    std::vector<std::byte> sealed(geometry_.sealed_slice_bytes());
    SealSlice(geometry_, open.bytes.data(), sealed.data());
    OpenSlice read(geometry_);
    UnsealSlice(geometry_, sealed.data(), read.bytes.data());
    EXPECT_FALSE(std::isfinite(read.Key(3, 5)));
    EXPECT_FALSE(std::isfinite(read.Value(7, 2)));
    EXPECT_TRUE(std::isfinite(read.Key(3, 4)));
    EXPECT_TRUE(std::isfinite(read.Value(6, 2)));
  }
}

TEST(SealedGeometry, OtherNumbersAreRefused) {
  KvGeometry geometry = Geometry(8, 64, 64);
  EXPECT_TRUE(CheckGeometry(geometry).ok());
  geometry.sealed_bits = 5;
  EXPECT_EQ(CheckGeometry(geometry).code(), absl::StatusCode::kInvalidArgument);
  geometry.sealed_bits = 4;
  geometry.dtype = DType::kF32;
  EXPECT_EQ(CheckGeometry(geometry).code(), absl::StatusCode::kInvalidArgument);
}

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
    const SealedSlice parts(geometry_, sealed_.data());
    std::vector<Floats> states(end - first, Floats(geometry_.padded_dim + 2));
    cpu::AttendPageArgs args;
    args.k = args.next_k = parts.keys;
    args.v = args.next_v = parts.values;
    args.k_scales = parts.key_scales;
    args.v_scales = parts.value_scales;
    args.dim = geometry_.padded_dim;
    args.num_rows = end - first;
    args.q = &queries_[first * geometry_.padded_dim];
    for (int r = 0; r < args.num_rows; ++r) {
      cpu::InitState(states[r].data(), args.dim);
      args.state[r] = states[r].data();
      args.lo[r] = Lo(first + r);
      args.hi[r] = Hi(first + r);
    }
    const cpu::Kernels& kernels = cpu::KernelsFor(isa_);
    for (int n = 0; n < 2; ++n) {
      kernels.attend_sealed_page(geometry_.sealed_bits, geometry_.page_tokens, args);
    }
    return states;
  }
  int Lo(int row) const { return row % 3 == 0 ? 0 : row; }
  int Hi(int row) const { return row % 2 == 0 ? geometry_.page_tokens : row + 1 + row % 4; }

  const Isa isa_ = std::get<0>(GetParam());
  const KvGeometry geometry_ =
      Geometry(std::get<1>(GetParam()), std::get<2>(GetParam()), std::get<3>(GetParam()));
  std::unique_ptr<OpenSlice> slice_;
  std::vector<std::byte> sealed_;
  Floats queries_;
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
  double errors = 0;
  for (int r = 0; r < kRows; ++r) {
    std::vector<double> out(g.head_dim);
    double total = 0;
    for (int t = Lo(r); t < Hi(r); ++t) {
      double score = 0;
      for (int d = 0; d < g.head_dim; ++d) {
        score += double{queries_[r * g.padded_dim + d]} * slice_->Key(t, d);
      }
      total += std::exp(score);
      for (int d = 0; d < g.head_dim; ++d) out[d] += std::exp(score) * slice_->Value(t, d);
    }
    for (int d = 0; d < g.head_dim; ++d) {
      errors += std::fabs(states[r][d] / states[r][g.padded_dim + 1] - out[d] / total);
    }
  }
  EXPECT_LE(errors / (kRows * g.head_dim), g.sealed_bits == 8 ? 0.01 : 0.15);
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
                                          testing::Values(16, 48, 128), testing::Values(16, 64)),
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
