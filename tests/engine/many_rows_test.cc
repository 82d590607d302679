// Products of more rows than meet a panel at a time, on every instruction set of this CPU.
#include <gtest/gtest.h>

#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "tests/engine/random_floats.h"

namespace folio {
namespace {

using Floats = std::vector<float>;
using test::RandomFloats;

class ManyRows : public testing::TestWithParam<WeightFormat> {};

TEST_P(ManyRows, HaveTheBitsOfEachAlone) {
  constexpr int kRows = 545;
  constexpr int64_t kOutputs = 330;
  for (const Isa isa : kAllIsas) {
    if (!CpuSupports(isa)) continue;
    for (const int64_t inputs : {96, 4160}) {
      const auto backend = *CreateCpuBackend({.num_threads = 2, .isa = isa});
      const auto matrix = *backend->PackRandom(kOutputs, inputs, 1, 0.1f, GetParam());
      const Floats x = RandomFloats(kRows * inputs, 2);
      const Floats bias = RandomFloats(kOutputs, 3);
      Floats together = RandomFloats(kRows * kOutputs, 4);
      const Floats before = together;
      backend->MatMul(*matrix, x.data(), kRows, bias, Backend::Output::kAdd, together.data());
      for (const int row : {0, 31, 32, 127, 255, 256, 400, 511, 512, 544}) {
        Floats alone(before.begin() + row * kOutputs, before.begin() + (row + 1) * kOutputs);
        backend->MatMul(*matrix, &x[row * inputs], 1, bias, Backend::Output::kAdd, alone.data());
        const Floats of_row(together.begin() + row * kOutputs,
                            together.begin() + (row + 1) * kOutputs);
        ASSERT_EQ(of_row, alone) << IsaName(isa) << ", " << inputs << " inputs, row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ManyRows,
                         testing::Values(WeightFormat{},
                                         WeightFormat{WeightFormat::Codec::kInt8, 128},
                                         WeightFormat{WeightFormat::Codec::kInt4, 32}));

}  // namespace
}  // namespace folio
