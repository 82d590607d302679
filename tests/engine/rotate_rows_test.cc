// Rotation of several vectors by one angle per pair, on every instruction set: beside float64, with
// the bits of each vector alone, and nothing written that lies between them.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "tests/engine/random_floats.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kRows = 5;
constexpr float kUntouched = 7.0f;

class RotateRows : public testing::TestWithParam<std::tuple<Isa, int, float>> {
 protected:
  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "not on this CPU";
    for (const float angle : RandomFloats(half_, 2)) {
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
  std::vector<float> Rotate() const {
    std::vector<float> out(x_.size(), kUntouched);
    kernels_.rotate_rows(x_.data(), kRows, row_floats_, cos_.data(), sin_.data(), sin_sign_, half_,
                         out.data());
    return out;
  }

  const Isa isa_ = std::get<0>(GetParam());
  const int half_ = std::get<1>(GetParam());
  const float sin_sign_ = std::get<2>(GetParam());
  const cpu::Kernels& kernels_ = cpu::KernelsFor(isa_);
  const int64_t row_floats_ = 2 * half_ + 16;
  const std::vector<float> x_ = RandomFloats(kRows * row_floats_, 1);
  std::vector<float> cos_;
  std::vector<float> sin_;
};

TEST_P(RotateRows, TurnsEachPairByItsAngle) {
  const std::vector<float> out = Rotate();
  for (int row = 0; row < kRows; ++row) {
    const float* const x = &x_[row * row_floats_];
    const float* const turned = &out[row * row_floats_];
    for (int m = 0; m < half_; ++m) {
      const double c = cos_[m], s = double{sin_sign_} * sin_[m];
      EXPECT_NEAR(turned[m], x[m] * c - x[m + half_] * s, 1e-6) << row << " " << m;
      EXPECT_NEAR(turned[m + half_], x[m + half_] * c + x[m] * s, 1e-6) << row << " " << m;
    }
    for (int64_t i = 2 * half_; i < row_floats_; ++i) EXPECT_EQ(turned[i], kUntouched) << row;
  }
}

TEST_P(RotateRows, GivesTheBitsOfEachVectorAlone) {
  const std::vector<float> out = Rotate();
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> alone(2 * half_);
    kernels_.rotate(&x_[row * row_floats_], cos_.data(), sin_.data(), sin_sign_, half_,
                    alone.data());
    const float* const turned = &out[row * row_floats_];
    EXPECT_EQ(std::vector<float>(turned, turned + 2 * half_), alone) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, RotateRows,
                         testing::Combine(testing::ValuesIn(kAllIsas),
                                          testing::Values(3, 16, 24, 64),
                                          testing::Values(1.0f, -1.0f)),
                         [](const auto& info) {
                           return absl::StrCat(IsaName(std::get<0>(info.param)), "_half",
                                               std::get<1>(info.param),
                                               std::get<2>(info.param) > 0 ? "" : "_back");
                         });

}  // namespace
}  // namespace folio::test
