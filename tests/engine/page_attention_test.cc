// Attention over a page of bf16, on every instruction set beside float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "tests/engine/open_slice.h"

namespace folio::test {
namespace {

struct Row {
  int lo;
  int hi;
};

class PageAttention : public testing::TestWithParam<std::tuple<Isa, int, int>> {
 protected:
  static constexpr int kRows = 19;

  void SetUp() override {
    if (!CpuSupports(isa_)) GTEST_SKIP() << "this CPU has no " << IsaName(isa_);
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    for (int t = 0; t < geometry_.page_tokens; ++t) {
      for (int d = 0; d < geometry_.head_dim; ++d) {
        slice_.SetKey(t, d, normal(random));
        slice_.SetValue(t, d, normal(random));
      }
    }
    for (int r = 0; r < kRows; ++r) {
      // Each sees later tokens than the one after it, up to a page of them.
      const int lo = (kRows - r) * (geometry_.page_tokens - 2) / kRows;
      const int hi = lo + 1 + static_cast<int>(random() % (geometry_.page_tokens - lo));
      rows_.push_back({lo, hi});
      // As some instruction sets round them.
      for (int d = 0; d < geometry_.padded_dim; ++d) {
        const float x = d < geometry_.head_dim ? normal(random) / 3 : 0.0f;
        queries_.push_back(Bf16ToFloat(FloatToBf16(x)));
      }
    }
  }

  // The states of rows [first, first + count) after the page.
  std::vector<Floats> Attend(int first, int count) const {
    std::vector<Floats> states(count, Floats(geometry_.padded_dim + 2));
    cpu::AttendPageArgs args;
    args.k = args.next_k = slice_.bytes.data();
    args.v = args.next_v = slice_.bytes.data() + geometry_.key_bytes();
    args.dim = geometry_.padded_dim;
    args.num_rows = count;
    args.q = &queries_[first * geometry_.padded_dim];
    for (int r = 0; r < count; ++r) {
      cpu::InitState(states[r].data(), args.dim);
      args.state[r] = states[r].data();
      args.lo[r] = rows_[first + r].lo;
      args.hi[r] = rows_[first + r].hi;
    }
    cpu::KernelsFor(isa_).attend_page(DType::kBf16, geometry_.page_tokens, args);
    return states;
  }

  // Weights are rounded to eight bits where there are products of bf16, which their sum knows.
  void ExpectSoftmax(int row, const Floats& state) const {
    const int dim = geometry_.padded_dim;
    double total = 0;
    std::vector<double> sums(dim), magnitudes(dim);
    for (int t = rows_[row].lo; t < rows_[row].hi; ++t) {
      double score = 0;
      for (int d = 0; d < geometry_.head_dim; ++d) {
        score += double{queries_[row * dim + d]} * slice_.Key(t, d);
      }
      const double weight = std::exp(score);
      total += weight;
      for (int d = 0; d < geometry_.head_dim; ++d) {
        sums[d] += weight * slice_.Value(t, d);
        magnitudes[d] += weight * std::fabs(slice_.Value(t, d));
      }
    }
    for (int d = 0; d < geometry_.head_dim; ++d) {
      ASSERT_NEAR(state[d] / state[dim + 1], sums[d] / total, 0x1p-8 * magnitudes[d] / total)
          << "row " << row << ", dimension " << d;
    }
  }

  const Isa isa_ = std::get<0>(GetParam());
  const KvGeometry geometry_ = Geometry(0, std::get<1>(GetParam()), std::get<2>(GetParam()));
  OpenSlice slice_{geometry_};
  Floats queries_;
  std::vector<Row> rows_;
};

TEST_P(PageAttention, IsASoftmaxOverWhatEachRowSees) {
  for (const int count : {1, 2, 8, kRows}) {
    const auto states = Attend(kRows - count, count);
    for (int r = 0; r < count; ++r) ExpectSoftmax(kRows - count + r, states[r]);
  }
}

TEST_P(PageAttention, ARowHasTheSameBitsAloneAndBesideOthers) {
  const auto all = Attend(0, kRows);
  for (const int count : {1, 5, 8}) {
    for (int first = 0; first + count <= kRows; first += 3) {
      EXPECT_EQ(Attend(first, count), std::vector(all.begin() + first, all.begin() + first + count))
          << count << " rows from " << first;
    }
  }
}

TEST_P(PageAttention, TilesThatNobodySeesNeedNotBeNumbers) {
  constexpr int kTokens = 16;
  for (Row& row : rows_) {
    row.lo = kTokens + row.lo % kTokens;
    row.hi = row.lo + 1 + row.hi % (2 * kTokens - row.lo);
  }
  const auto before = Attend(0, kRows);
  for (int t = 0; t < geometry_.page_tokens; ++t) {
    if (t / kTokens == 1) continue;
    for (int d = 0; d < geometry_.head_dim; ++d) {
      slice_.SetKey(t, d, std::numeric_limits<float>::quiet_NaN());
      slice_.SetValue(t, d, std::numeric_limits<float>::quiet_NaN());
    }
  }
  EXPECT_EQ(Attend(0, kRows), before);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PageAttention,
                         testing::Combine(testing::ValuesIn(kAllIsas), testing::Values(64, 80),
                                          testing::Values(64, 128)),
                         [](const auto& info) {
                           return absl::StrCat(IsaName(std::get<0>(info.param)), "_dim",
                                               std::get<1>(info.param), "_page",
                                               std::get<2>(info.param));
                         });

}  // namespace
}  // namespace folio::test
