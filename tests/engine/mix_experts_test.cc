// The mixture of experts as a verb, against its formula (docs/methods.md, section 11.5).
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "gtest/gtest.h"
#include "tests/engine/random_floats.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

// Shapes and weights of a mixture, as Backend::MixExperts takes them.
class Mixture {
 public:
  static constexpr int kHidden = 40;
  static constexpr int kWidth = 24;

  explicit Mixture(Backend* backend, int num_experts) : backend_(backend) {
    for (int e = 0; e < num_experts; ++e) {
      up_.push_back(Weights(2 * kWidth * kHidden, 10 + e));
      down_.push_back(Weights(kHidden * kWidth, 20 + e));
      packed_.push_back(Pack(up_[e], 2 * kWidth, kHidden));
      packed_.push_back(Pack(down_[e], kHidden, kWidth));
      experts.push_back({packed_[2 * e].get(), packed_[2 * e + 1].get()});
    }
  }

  // What MixExperts adds to `out`.
  void Run(const std::vector<float>& scores, const std::vector<float>& x, int num_chosen,
           std::vector<float>* out) {
    const auto num_rows = static_cast<int>(x.size()) / kHidden;
    std::vector<float> inputs(x.size());
    std::vector<float> outputs(x.size());
    std::vector<float> up(num_rows * 2 * kWidth);
    std::vector<float> activated(num_rows * kWidth);
    backend_->MixExperts({.experts = experts,
                          .num_chosen = num_chosen,
                          .num_rows = num_rows,
                          .scores = scores.data(),
                          .x = x.data(),
                          .inputs = inputs.data(),
                          .outputs = outputs.data(),
                          .up = up.data(),
                          .activated = activated.data()},
                         out->data());
  }

  // The output of one expert for one row, in double.
  std::vector<double> Expected(int expert, const float* x) const {
    std::vector<double> activated(kWidth);
    for (int w = 0; w < kWidth; ++w) {
      const double gate = Dot(&up_[expert][w * kHidden], x, kHidden);
      const double up = Dot(&up_[expert][(kWidth + w) * kHidden], x, kHidden);
      activated[w] = gate / (1 + std::exp(-gate)) * up;
    }
    std::vector<double> result(kHidden);
    for (int d = 0; d < kHidden; ++d) {
      result[d] = Dot(&down_[expert][d * kWidth], activated.data(), kWidth);
    }
    return result;
  }

  std::vector<Backend::Expert> experts;

 private:
  static std::vector<float> Weights(int64_t size, uint64_t seed) {
    std::vector<float> weights = test::RandomFloats(size, seed);
    for (float& weight : weights) weight *= 0.2f;
    return weights;
  }
  template <typename T>
  static double Dot(const float* a, const T* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  }
  std::unique_ptr<PackedMatrix> Pack(const std::vector<float>& values, int rows, int cols) {
    TensorView view;
    view.data = values.data();
    view.dtype = DType::kF32;
    view.rank = 2;
    view.shape[0] = rows;
    view.shape[1] = cols;
    return *backend_->Pack(std::span(&view, 1), {});
  }

  Backend* const backend_;
  std::vector<std::vector<float>> up_;
  std::vector<std::vector<float>> down_;
  std::vector<std::unique_ptr<PackedMatrix>> packed_;
};

TEST(MixExperts, AddsTheWeightedOutputsAndReadsNoExpertThatNoRowChose) {
  const auto backend = test::NewTestBackend();
  Mixture mixture(backend.get(), 4);
  mixture.experts[2] = {nullptr, nullptr};
  const float ln3 = std::log(3.0f);
  const std::vector<float> scores = {ln3, 0,   -9, -8,  // 0 and 1: 3/4 and 1/4
                                     0,   -1,  -9, 0,   // 0 and 3: 1/2 each
                                     -5,  ln3, -9, 0};  // 1 and 3: 3/4 and 1/4
  const std::vector<std::vector<double>> shares = {
      {0.75, 0.25, 0, 0}, {0.5, 0, 0, 0.5}, {0, 0.75, 0, 0.25}};
  const std::vector<float> x = test::RandomFloats(3 * Mixture::kHidden, 1);
  const std::vector<float> before = test::RandomFloats(3 * Mixture::kHidden, 2);
  std::vector<float> out = before;
  mixture.Run(scores, x, 2, &out);
  for (int row = 0; row < 3; ++row) {
    std::vector<double> expected(Mixture::kHidden);
    for (const int e : {0, 1, 3}) {
      const auto of_expert = mixture.Expected(e, &x[row * Mixture::kHidden]);
      for (int d = 0; d < Mixture::kHidden; ++d) expected[d] += shares[row][e] * of_expert[d];
    }
    for (int d = 0; d < Mixture::kHidden; ++d) {
      const int at = row * Mixture::kHidden + d;
      EXPECT_NEAR(out[at], before[at] + expected[d], 1e-4) << row << " " << d;
    }
  }
}

}  // namespace
}  // namespace folio
