// Slices of integers of 8 or 4 bits: the stored form beside its definition (kv_types.h,
// sealed_codec.h).
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "engine/backend/cpu/sealed_codec.h"
#include "engine/types/geometry_check.h"
#include "tests/engine/open_slice.h"

namespace folio::test {
namespace {

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

}  // namespace
}  // namespace folio::test
