// Pages of integers of 8 or 4 bits: the stored form beside its definition (kv_types.h,
// sealed_codec.h), and attention on every instruction set beside float64.
#include <gtest/gtest.h>

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

// Where the layouts of kv_types.h have a number of a key or value: its index, in numbers.
int64_t KeyIndex(const KvGeometry& g, int token, int d) {
  return ((int64_t{token} / 16 * (g.padded_key_dim() / 2) + d / 2) * 16 + token % 16) * 2 + d % 2;
}
int64_t ValueIndex(const KvGeometry& g, int token, int d) {
  return (int64_t{token} / 2 * g.padded_dim + d) * 2 + token % 2;
}
// The same of 4 bits: the byte, and whether the number is its low bits.
std::pair<int64_t, bool> KeyNibble(const KvGeometry& g, int token, int d) {
  const int64_t line = int64_t{token} / 16 * (g.padded_key_dim() / 2) + d / 2;
  return {(line / 2 * 16 + token % 16) * 2 + d % 2, line % 2 == 0};
}
std::pair<int64_t, bool> ValueNibble(const KvGeometry& g, int token, int d) {
  const int pair = token / 2;
  return {(int64_t{pair} / 2 * g.padded_dim + d) * 2 + token % 2, pair % 2 == 0};
}

struct OpenSlice {
  explicit OpenSlice(const KvGeometry& g) : geometry(g), bytes(g.slice_bytes()) {}
  OpenSlice(const OpenSlice&) = default;
  OpenSlice& operator=(const OpenSlice& other) {  // of the same geometry
    bytes = other.bytes;
    return *this;
  }
  void SetKey(int token, int d, float x) { Set(KeyIndex(geometry, token, d), x); }
  void SetValue(int token, int d, float x) {
    Set(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d), x);
  }
  float Key(int token, int d) const { return Get(KeyIndex(geometry, token, d)); }
  float Value(int token, int d) const {
    return Get(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d));
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
      ASSERT_EQ(IntegerAt(0, KeyIndex(g, t, d), KeyNibble(g, t, d)), integer) << t << " " << d;
      ASSERT_EQ(parts.key_scales[d], scale) << d;
    }
    for (int d = 0; d < g.head_dim; ++d) {
      const auto [integer, scale] = Defined(open_.Value(t, d), LargestOfValue(open_, t), bits_);
      ASSERT_EQ(IntegerAt(g.sealed_key_bytes(), ValueIndex(g, t, d), ValueNibble(g, t, d)), integer)
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

TEST_P(SealedPages, AttentionIsThatOfTheStoredNumbers) {
  OpenSlice stored(geometry_);
  const auto states = Attend(0, kRows);
  Floats value(geometry_.head_dim);
  for (int r = 0; r < kRows; ++r) {
    std::vector<double> out(geometry_.head_dim);
    double sum = 0;
    for (int t = Lo(r); t < Hi(r); ++t) {
      double score = 0;
      for (int d = 0; d < geometry_.head_dim; ++d) {
        const auto [integer, scale] =
            Defined(slice_->Key(t, d), LargestKey(*slice_, d), geometry_.sealed_bits);
        score += double{queries_[r * geometry_.padded_dim + d]} * integer * scale;
      }
      const double weight = std::exp(score);
      sum += weight;
      for (int d = 0; d < geometry_.head_dim; ++d) {
        const auto [integer, scale] =
            Defined(slice_->Value(t, d), LargestOfValue(*slice_, t), geometry_.sealed_bits);
        out[d] += weight * integer * scale;
      }
    }
    for (int d = 0; d < geometry_.head_dim; ++d) {
      const float norm = states[r][geometry_.padded_dim + 1];
      ASSERT_NEAR(states[r][d] / norm, out[d] / sum, 2e-3) << r << " " << d;
    }
  }
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
    args.hi[0] = 6;  // a single token: its value, and its score as the maximum
    cpu::KernelsFor(isa).attend_sealed_page(8, 16, args);
    if (first.empty()) first = state;
    EXPECT_EQ(state, first) << IsaName(isa);
  }
}

}  // namespace
}  // namespace folio::test
