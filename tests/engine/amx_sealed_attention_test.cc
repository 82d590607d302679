// Attention over pages of integers on the matrix unit, its instructions emulated: the same bits as
// by vectors, which sealed_pages_test.cc compares with the definition.
#define FOLIO_KERNEL_NAMESPACE emulated_amx_sealed_attention
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "engine/backend/cpu/kernels/amx_sealed_attention-inl.h"
#include "tests/engine/emulated_tiles.h"

namespace folio::cpu::emulated_amx_sealed_attention {
namespace {

using test::EmulatedTiles;
using Floats = std::vector<float>;

// Bits of a number, tokens of a page, dim, rows.
class AmxSealedAttention : public testing::TestWithParam<std::tuple<int, int, int, int>> {
 protected:
  void SetUp() override {
    const auto [bits, page_tokens, dim, num_rows] = GetParam();
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    // What lies behind it is not the page's to read.
    const int64_t integer_bytes = int64_t{page_tokens} * dim * bits / 8;
    for (auto* numbers : {&k_, &v_}) {
      numbers->resize(integer_bytes);
      for (std::byte& byte : *numbers) byte = static_cast<std::byte>(RandomByte(bits, &random));
    }
    for (int d = 0; d < dim; ++d) k_scales_.push_back(0.01f + 0.02f * std::fabs(normal(random)));
    for (int t = 0; t < page_tokens; ++t) v_scales_.push_back(std::fabs(normal(random)));
    for (int i = 0; i < num_rows * dim; ++i) q_.push_back(normal(random) / 4);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    for (int r = 0; r < num_rows; ++r) {
      // The second group of rows and those after it see neither the begin of the page nor its end.
      const int first = r < kTileRows ? 0 : page_tokens / 2;
      const int last = page_tokens - (r < kTileRows ? 0 : 3);
      const int lo = first + below(last - first);
      lo_.push_back(r % 3 == 0 ? first : lo);
      hi_.push_back(r % 4 == 0 ? last : lo + 1 + below(last - lo));
    }
  }
  // Of 8 bits -128 does not occur, of 4 neither of both numbers is -8.
  static int RandomByte(int bits, std::mt19937_64* random) {
    if (bits == 8) return static_cast<int>((*random)() % 255) - 127;
    return static_cast<int>((*random)() % 15 + 1) | static_cast<int>((*random)() % 15 + 1) << 4;
  }

  // States of the rows after the page was folded in twice, by `attend`.
  template <typename Attend>
  std::vector<Floats> States(Attend attend) const {
    const auto [bits, page_tokens, dim, num_rows] = GetParam();
    std::vector<Floats> states(num_rows, Floats(dim + 2));
    AttendPageArgs args;
    args.k = args.next_k = k_.data();
    args.v = args.next_v = v_.data();
    args.k_scales = k_scales_.data();
    args.v_scales = v_scales_.data();
    args.dim = dim;
    args.num_rows = num_rows;
    args.q = q_.data();
    for (int r = 0; r < num_rows; ++r) {
      InitState(states[r].data(), dim);
      args.state[r] = states[r].data();
      args.lo[r] = lo_[r];
      args.hi[r] = hi_[r];
    }
    for (int n = 0; n < 2; ++n) attend(bits, page_tokens, args);
    return states;
  }

  std::vector<std::byte> k_, v_;
  Floats k_scales_, v_scales_, q_;
  std::vector<int> lo_, hi_;
};

TEST_P(AmxSealedAttention, HasTheBitsOfVectors) {
  EXPECT_EQ(States(AttendSealedTiles<EmulatedTiles>), States(AttendSealedPage));
  EXPECT_FALSE(EmulatedTiles::configured());
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxSealedAttention,
                         testing::Combine(testing::Values(8, 4), testing::Values(16, 64, 256),
                                          testing::Values(16, 48, 64, 128, 256),
                                          testing::Values(3, 16, 41, 64)));

}  // namespace
}  // namespace folio::cpu::emulated_amx_sealed_attention
