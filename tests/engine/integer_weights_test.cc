// Products with int8 and int4 weights beside their definition, written out (kernels.h,
// integer_weights.h), on every instruction set of this CPU.
#include "engine/backend/cpu/integer_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/cpu_matrix.h"
#include "engine/base/half.h"
#include "tests/engine/random_floats.h"

namespace folio {
namespace {

using Codec = WeightFormat::Codec;
using Floats = std::vector<float>;
using test::RandomFloats;

struct Case {
  Isa isa;
  WeightFormat format;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << IsaName(c.isa); }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Isa isa : kAllIsas) {
    if (!CpuSupports(isa)) continue;
    for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
      for (const int group : {32, 64, 128}) cases.push_back({isa, {codec, group}});
    }
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const WeightFormat& format = info.param.format;
  return absl::StrCat(IsaName(info.param.isa), format.codec == Codec::kInt8 ? "_int8_" : "_int4_",
                      format.group);
}

TensorView ViewOf(const Floats& values, int64_t rows, int64_t cols) {
  TensorView view;
  view.data = values.data();
  view.dtype = DType::kF32;
  view.rank = 2;
  view.shape[0] = rows;
  view.shape[1] = cols;
  return view;
}

// Integers of a group and their scale.
struct Group {
  std::vector<int> integers;
  double scale = 0;
};

Group Nearest(const float* values, int64_t count, float scale, int low, int high) {
  Group group{.integers = {}, .scale = scale};
  for (int64_t i = 0; i < count; ++i) {
    const float ratio = scale == 0 ? 0 : values[i] / scale;
    group.integers.push_back(std::clamp(static_cast<int>(std::nearbyint(ratio)), low, high));
  }
  return group;
}

float ScaleOf(const float* weights, int64_t count, Codec codec) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::fabs(weights[i]) > std::fabs(most)) most = weights[i];
  }
  return codec == Codec::kInt8 ? std::fabs(most) / 127 : most / -8;
}

// To the 11 bits of fp16, and no less than its last place where the largest is in [2^15, 2^16).
double RoundedScale(double scale, int exponent_of_largest) {
  if (scale == 0) return 0;
  const int exponent = std::max(std::ilogb(scale), exponent_of_largest - 29);
  const double last_place = std::ldexp(1.0, exponent - 10);
  return std::nearbyint(scale / last_place) * last_place;
}

// A row's groups.
std::vector<Group> WeightGroups(const float* weights, int64_t inputs, const WeightFormat& format) {
  Floats scales;
  for (int64_t first = 0; first < inputs; first += format.group) {
    const int64_t count = std::min<int64_t>(format.group, inputs - first);
    scales.push_back(ScaleOf(weights + first, count, format.codec));
  }
  float largest = 0;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale));
  std::vector<Group> groups;
  for (size_t g = 0; g < scales.size(); ++g) {
    const int64_t first = static_cast<int64_t>(g) * format.group;
    const int64_t count = std::min<int64_t>(format.group, inputs - first);
    const auto rounded = static_cast<float>(RoundedScale(scales[g], std::ilogb(largest)));
    groups.push_back(format.codec == Codec::kInt8
                         ? Nearest(weights + first, count, rounded, -128, 127)
                         : Nearest(weights + first, count, rounded, -8, 7));
  }
  return groups;
}

Group InputGroup(const float* x, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(x[i]));
  // In fp32, as it is defined.
  const float inverse = most > 0 ? 127.0f / most : 0.0f;
  Group group{.integers = {}, .scale = most / 127.0f};
  for (int64_t i = 0; i < count; ++i) {
    group.integers.push_back(static_cast<int>(std::nearbyint(x[i] * inverse)));
  }
  return group;
}

// One product in float64.
double Product(const float* weights, const float* x, int64_t inputs, const WeightFormat& format) {
  double sum = 0;
  const std::vector<Group> groups = WeightGroups(weights, inputs, format);
  for (int64_t first = 0; first < inputs; first += format.group) {
    const int64_t count = std::min<int64_t>(format.group, inputs - first);
    const Group& w = groups[first / format.group];
    const Group in = InputGroup(x + first, count);
    int64_t dot = 0;
    for (int64_t i = 0; i < count; ++i) dot += int64_t{w.integers[i]} * in.integers[i];
    sum += static_cast<double>(dot) * w.scale * in.scale;
  }
  return sum;
}

class IntegerWeights : public testing::TestWithParam<Case> {
 protected:
  const WeightFormat& format() const { return GetParam().format; }
  Floats Multiply(const PackedMatrix& matrix, const Floats& x, int rows) {
    Floats y(rows * matrix.rows(), NAN);
    backend_->MatMul(matrix, x.data(), rows, {}, Backend::Output::kStore, y.data());
    return y;
  }
  std::unique_ptr<PackedMatrix> Pack(const Floats& weights, int64_t outputs, int64_t inputs) {
    const TensorView view = ViewOf(weights, outputs, inputs);
    return *backend_->Pack(std::span(&view, 1), format());
  }
  const std::unique_ptr<Backend> backend_ =
      *CreateCpuBackend({.num_threads = 2, .isa = GetParam().isa});
};

// Integers whose scales are 1, the largest ones in every place: any lane that saturates or takes
// the wrong sign shows.
TEST_P(IntegerWeights, SumsAreExact) {
  const int most_weight = format().codec == Codec::kInt8 ? 127 : -8;
  std::mt19937 random(5);
  for (const int64_t inputs : {32, 100, 257, 512}) {
    for (const int64_t outputs : {1, 31, 70}) {
      for (const int rows : {1, 2, 3, 5, 12, 13, 26}) {
        const auto fill = [&](int64_t count, int most, int low, int high, bool extreme) {
          Floats values(count * inputs);
          std::uniform_int_distribution<int> any(low, high);
          for (int64_t i = 0; i < count * inputs; ++i) {
            const bool first = i % inputs % format().group == 0;
            values[i] = static_cast<float>(first     ? most
                                           : extreme ? (i % 3 ? low : high)
                                                     : any(random));
          }
          return values;
        };
        const bool extreme = rows % 2 == 1;
        const Floats weights = fill(outputs, most_weight, most_weight == -8 ? -8 : -127,
                                    most_weight == -8 ? 7 : 127, extreme);
        const Floats x = fill(rows, 127, -127, 127, extreme);
        const Floats y = Multiply(*Pack(weights, outputs, inputs), x, rows);
        for (int row = 0; row < rows; ++row) {
          for (int64_t out = 0; out < outputs; ++out) {
            int64_t sum = 0;
            for (int64_t i = 0; i < inputs; ++i) {
              sum += std::lround(weights[out * inputs + i]) * std::lround(x[row * inputs + i]);
            }
            ASSERT_EQ(y[row * outputs + out], static_cast<float>(sum))
                << inputs << " inputs, output " << out << " of " << outputs << ", row " << row;
          }
        }
      }
    }
  }
}

TEST_P(IntegerWeights, ProductsAreThoseOfTheDefinition) {
  constexpr int64_t kInputs = 700, kOutputs = 45;
  constexpr int kRows = 7;
  const Floats weights = RandomFloats(kOutputs * kInputs, 1);
  Floats x = RandomFloats(kRows * kInputs, 2);
  std::fill_n(x.begin() + 3 * kInputs, 256, 0.0f);  // groups without a scale
  const Floats y = Multiply(*Pack(weights, kOutputs, kInputs), x, kRows);
  for (int row = 0; row < kRows; ++row) {
    for (int64_t out = 0; out < kOutputs; ++out) {
      const double expected =
          Product(&weights[out * kInputs], &x[row * kInputs], kInputs, format());
      // Another integer for one input or weight would be hundredths.
      ASSERT_NEAR(y[row * kOutputs + out], expected, 2e-4);
    }
  }
}

TEST_P(IntegerWeights, ARowHasTheSameBitsAloneAndBesideOthers) {
  constexpr int64_t kInputs = 300, kOutputs = 70;
  const Floats weights = RandomFloats(kOutputs * kInputs, 3);
  const auto matrix = Pack(weights, kOutputs, kInputs);
  for (const int rows : {2, 4, 7, 12, 29}) {
    const Floats x = RandomFloats(rows * kInputs, 4);
    const Floats together = Multiply(*matrix, x, rows);
    for (int row = 0; row < rows; ++row) {
      const Floats one(x.begin() + row * kInputs, x.begin() + (row + 1) * kInputs);
      const Floats alone = Multiply(*matrix, one, 1);
      ASSERT_EQ(std::memcmp(alone.data(), &together[row * kOutputs], kOutputs * sizeof(float)), 0)
          << "row " << row << " of " << rows;
    }
  }
}

// What a weight is read back as is the nearest that its scale allows.
TEST(IntegerWeightsInMemory, AreReadBackAsIntegersTimesScale) {
  constexpr int64_t kInputs = 300, kOutputs = 40;
  Floats weights = RandomFloats(kOutputs * kInputs, 6);
  std::fill_n(weights.begin() + 5 * kInputs, kInputs, 0.0f);
  const TensorView view = ViewOf(weights, kOutputs, kInputs);
  WorkerPool pool(2);
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (const int size : {32, 64, 128}) {
      const auto matrix = *CpuMatrix::Create(std::span(&view, 1), {codec, size}, &pool);
      Floats row(kInputs);
      for (int64_t out = 0; out < kOutputs; ++out) {
        matrix->ReadRow(out, row.data());
        const auto groups = WeightGroups(&weights[out * kInputs], kInputs, {codec, size});
        for (int64_t i = 0; i < kInputs; ++i) {
          const Group& group = groups[i / size];
          ASSERT_EQ(row[i], static_cast<float>(group.integers[i % size] * group.scale));
        }
      }
    }
  }
}

// Files have the bytes of a matrix, so this test and the name of the layout change together.
TEST(IntegerWeightsInMemory, LieAsTheNameOfTheLayoutSays) {
  EXPECT_STREQ(cpu::kPanelLayout, "cpu-panels-2");
  constexpr int64_t kInputs = 100, kOutputs = 40, kPanels = 2;
  const Floats weights = RandomFloats(kOutputs * kInputs, 7);
  const TensorView view = ViewOf(weights, kOutputs, kInputs);
  WorkerPool pool(2);
  for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
    for (const int size : {32, 64, 128}) {
      const int64_t num_groups = (kInputs + size - 1) / size;
      const int64_t scales_at = (codec == Codec::kInt8 ? size : size / 2) * 32;
      const int64_t group_bytes = scales_at + 64;
      const int64_t panel_bytes = num_groups * group_bytes + 64;
      std::vector<uint8_t> expected(kPanels * panel_bytes);
      for (int64_t out = 0; out < kOutputs; ++out) {
        const int64_t lane = out % 32;
        uint8_t* at = &expected[out / 32 * panel_bytes];
        const auto groups = WeightGroups(&weights[out * kInputs], kInputs, {codec, size});
        double largest = 0;
        for (const Group& group : groups) largest = std::max(largest, std::fabs(group.scale));
        const float unit = std::ldexp(1.0f, std::ilogb(largest) - 15);
        for (const Group& group : groups) {
          for (int i = 0; i < size; ++i) {
            const bool is_input = i < static_cast<int>(group.integers.size());
            const int integer = is_input ? group.integers[i] : 0;
            if (codec == Codec::kInt8) {
              at[(i / 4 * 32 + lane) * 4 + i % 4] = static_cast<uint8_t>(integer);
            } else {
              at[(i / 8 * 32 + lane) * 4 + i % 4] |=
                  static_cast<uint8_t>((integer + 8) << (i % 8 < 4 ? 0 : 4));
            }
          }
          const uint16_t scale = FloatToFp16(static_cast<float>(group.scale) / unit);
          std::memcpy(at + scales_at + lane * 2, &scale, 2);
          at += group_bytes;
        }
        const uint16_t bits = FloatToBf16(unit);
        std::memcpy(at + (lane % 16 * 2 + lane / 16) * 2, &bits, 2);
      }
      const auto matrix = *CpuMatrix::Create(std::span(&view, 1), {codec, size}, &pool);
      const std::span<const std::byte> packed = matrix->packed();
      ASSERT_EQ(packed.size(), expected.size());
      EXPECT_EQ(std::memcmp(packed.data(), expected.data(), packed.size()), 0) << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, IntegerWeights, testing::ValuesIn(Cases()), NameOf);

// A matrix [rows, cols] of integers in [low, high] times fp16 scales of groups, of which each has
// bits that bf16 has not; they go down to the smallest that there are.
struct Quantised {
  Floats values;
  Floats scales;
  std::vector<int> integers;
};
Quantised RandomQuantised(int64_t rows, int64_t cols, int group, int low, int high) {
  std::mt19937 random(5);
  Quantised q;
  const int64_t groups = (cols + group - 1) / group;
  for (int64_t i = 0; i < rows * groups; ++i) {
    const uint32_t sign = random() % 2 << 15;
    const uint32_t exponent = random() % 31 << 10;  // 0: below the normal ones
    q.scales.push_back(
        Fp16ToFloat(static_cast<uint16_t>(sign | exponent | 0x181 | random() % 1024)));
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    // Nothing reaches the ends of the range: the scale cannot be told from the numbers.
    q.integers.push_back(low + static_cast<int>(random() % (high - low + 1)));
    const int64_t scale = i / cols * groups + i % cols / group;
    q.values.push_back(static_cast<float>(q.integers.back()) * q.scales[scale]);
  }
  return q;
}

TEST(KeptIntegers, OfGroupsInsideTheirScalesAreLossless) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kCols = 200;
  WorkerPool pool(2);
  for (const int given : {32, 64, 128, 256}) {
    const Quantised q = RandomQuantised(kRows, kCols, given, -5, 6);
    TensorView view = ViewOf(q.values, kRows, kCols);
    view.scales = q.scales.data();
    view.scale_group = given;
    for (const int group : {32, 64, 128}) {
      for (const Codec codec : {Codec::kInt8, Codec::kInt4}) {
        const auto matrix = *CpuMatrix::Create(std::span(&view, 1), {codec, group}, &pool);
        bool all = true;
        for (int64_t row = 0; row < kRows; ++row) {
          Floats kept(kCols);
          matrix->ReadRow(row, kept.data());
          all &= std::memcmp(kept.data(), &q.values[row * kCols], kCols * sizeof(float)) == 0;
        }
        EXPECT_EQ(all, given % group == 0) << given << " as " << group;
      }
    }
  }
}

// The kernels multiply with these same numbers: a single input of 127 has the integer 127 and the
// scale 1, so its output is a weight, times 127, exactly.
TEST_P(IntegerWeights, KeptLosslesslyAreMultipliedAsTheyAre) {
  constexpr int64_t kInputs = 512, kOutputs = 70;
  const int low = format().codec == Codec::kInt8 ? -128 : -8;
  const int high = format().codec == Codec::kInt8 ? 127 : 7;
  const Quantised q = RandomQuantised(kOutputs, kInputs, format().group, low, high);
  TensorView view = ViewOf(q.values, kOutputs, kInputs);
  view.scales = q.scales.data();
  view.scale_group = format().group;
  const auto matrix = *backend_->Pack(std::span(&view, 1), format());
  for (const int rows : {1, 2, 20}) {
    for (const int64_t input : {0, 77, 511}) {
      Floats x(rows * kInputs);
      for (int row = 0; row < rows; ++row) x[row * kInputs + input] = 127;
      const Floats y = Multiply(*matrix, x, rows);
      for (int64_t i = 0; i < rows * kOutputs; ++i) {
        ASSERT_EQ(y[i], 127 * q.values[i % kOutputs * kInputs + input]) << rows << " rows, " << i;
      }
    }
  }
}

TEST_P(IntegerWeights, SumsOfTheLowestIntegersAreExact) {
  constexpr int64_t kInputs = 512, kOutputs = 40;
  const float lowest = format().codec == Codec::kInt8 ? -128 : -8;
  const Floats weights(kOutputs * kInputs, lowest);
  const Floats scales(kOutputs * kInputs / format().group, 1.0f);
  TensorView view = ViewOf(weights, kOutputs, kInputs);
  view.scales = scales.data();
  view.scale_group = format().group;
  const auto matrix = *backend_->Pack(std::span(&view, 1), format());
  for (const int rows : {1, 20}) {
    for (const float x : {127.0f, -127.0f}) {
      const Floats y = Multiply(*matrix, Floats(rows * kInputs, x), rows);
      EXPECT_EQ(y, Floats(rows * kOutputs, kInputs * lowest * x));
    }
  }
}

// However large or small weights are, their sizes in relation to each other stay.
TEST_P(IntegerWeights, OfAnySizeAreTheSameIntegers) {
  constexpr int64_t kInputs = 256, kOutputs = 33;
  const Floats weights = RandomFloats(kOutputs * kInputs, 8);
  const Floats x = RandomFloats(kInputs, 9);
  const Floats expected = Multiply(*Pack(weights, kOutputs, kInputs), x, 1);
  for (const int exponent : {-90, -40, -20, 20, 40, 90}) {
    Floats scaled = weights;
    for (float& weight : scaled) weight = std::ldexp(weight, exponent);
    const Floats y = Multiply(*Pack(scaled, kOutputs, kInputs), x, 1);
    for (int64_t i = 0; i < kOutputs; ++i) {
      ASSERT_EQ(y[i], std::ldexp(expected[i], exponent)) << exponent;
    }
  }
}

TEST(KeptIntegers, NotWhereTheCodecHasThemNot) {
  const auto keeps = [&](const Floats& weights, float scale, cpu::PanelFormat::Codec codec) {
    return cpu::ScaleFor(codec, weights.data(), 3, scale) == scale;
  };
  constexpr auto kInt4 = cpu::PanelFormat::Codec::kInt4;
  constexpr auto kInt8 = cpu::PanelFormat::Codec::kInt8;
  EXPECT_TRUE(keeps({-7, 0, 7}, 1, kInt4));
  EXPECT_TRUE(keeps({0, 3, 0}, 1, kInt4));
  EXPECT_FALSE(keeps({0, 8, 0}, 1, kInt4));
  EXPECT_FALSE(keeps({-9, 0, 0}, 1, kInt4));
  EXPECT_TRUE(keeps({5, -100, 0}, 1, kInt8));
  EXPECT_TRUE(keeps({-128, 0, 0}, 1, kInt8));
  EXPECT_FALSE(keeps({0, 128, 0}, 1, kInt8));
  EXPECT_EQ(cpu::ScaleFor(kInt8, Floats{127, 0, 0}.data(), 3, 0), 1.0f);
}

TEST(UnitOfScales, TakesTheLargestToTheEndOfFp16) {
  EXPECT_EQ(cpu::UnitOf(Floats{0, 0}), 1.0f);
  EXPECT_EQ(cpu::UnitOf(Floats{0.25f, -1.5f, 0}), 0x1p-15f);
  EXPECT_EQ(cpu::UnitOf(Floats{65504}), 1.0f);
  EXPECT_EQ(cpu::UnitOf(Floats{0x1p-24f}), 0x1p-39f);
  EXPECT_EQ(cpu::UnitOf(Floats{0x1p127f}), 0x1p112f);
  EXPECT_EQ(cpu::UnitOf(Floats{0x1p-140f}), 0x1p-126f);
  EXPECT_EQ(cpu::ScaleBits(-65535, 1), 0xfbff);  // the last number before infinity
}

TEST(Fp16, RoundTripsEveryFiniteNumberAndRoundsToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    ASSERT_EQ(FloatToFp16(Fp16ToFloat(static_cast<uint16_t>(bits))), bits);
  }
  EXPECT_EQ(FloatToFp16(1 + 0x1p-11f), 0x3c00);
  EXPECT_EQ(FloatToFp16(1 + 0x3p-11f), 0x3c02);
  EXPECT_EQ(FloatToFp16(0x1p-25f), 0);
  EXPECT_EQ(FloatToFp16(-0x3p-25f), 0x8002);
}

}  // namespace
}  // namespace folio
