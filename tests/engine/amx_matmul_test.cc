// Matrix products on the matrix unit, its instructions emulated: those of integers have the bits of
// the vectors' products, those of bf16 stand beside float64.
#define FOLIO_KERNEL_NAMESPACE emulated_amx
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "engine/backend/cpu/cpu_matrix.h"
#include "engine/backend/cpu/kernels/amx_matmul-inl.h"
#include "engine/base/scratch_memory.h"
#include "tests/engine/emulated_tiles.h"
#include "tests/engine/random_floats.h"

namespace folio::cpu::emulated_amx {
namespace {

using test::EmulatedTiles;
using test::RandomFloats;
using Floats = std::vector<float>;
using Codec = WeightFormat::Codec;

float Rounded(float x) { return Bf16ToFloat(FloatToBf16(x)); }

std::unique_ptr<CpuMatrix> Pack(std::span<const uint16_t> weights, int64_t outputs, int64_t inputs,
                                const WeightFormat& format) {
  TensorView view;
  view.data = weights.data();
  view.dtype = DType::kBf16;
  view.rank = 2;
  view.shape[0] = outputs;
  view.shape[1] = inputs;
  WorkerPool pool(1);
  return *CpuMatrix::Create(std::span(&view, 1), format, &pool);
}

std::vector<uint16_t> RandomBf16(int64_t size, uint64_t seed) {
  const Floats values = RandomFloats(size, seed);
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(FloatToBf16(value));
  return bits;
}

// Blocks of block_rows rows are packed as the backend does; `x` [rows][inputs].
template <typename PackFn, typename MatMulFn, typename ScratchFn>
Floats Multiply(const CpuMatrix& matrix, const Floats& x, int rows, int block_rows, PackFn pack,
                MatMulFn mat_mul, ScratchFn scratch_bytes) {
  const int64_t inputs = matrix.cols();
  const int64_t row_words = matrix.num_groups() * matrix.format().x_words();
  std::vector<uint32_t> packed(rows * row_words);
  for (int row = 0; row < rows; row += block_rows) {
    pack(matrix.format(), &x[row * inputs], std::min(block_rows, rows - row), inputs,
         &packed[row * row_words]);
  }
  Floats y(rows * matrix.rows(), NAN);
  MatMulArgs args;
  args.panels = matrix.data();
  args.panel_bytes = matrix.panel_bytes();
  args.num_groups = matrix.num_groups();
  args.panel_end = matrix.num_panels();
  args.x = packed.data();
  args.num_rows = rows;
  args.num_outputs = matrix.rows();
  args.y = y.data();
  ScratchMemory scratch;
  args.scratch = scratch.Get<std::byte>(scratch_bytes(matrix.format(), args));
  mat_mul(matrix.format(), args);
  return y;
}

int64_t NoScratch(const PanelFormat&, const MatMulArgs&) { return 0; }

Floats ByTiles(const CpuMatrix& matrix, const Floats& x, int rows) {
  const int block = matrix.format().integers() ? kTileRows : kBf16BlockRows;
  Floats y = Multiply(matrix, x, rows, block, PackXForTiles, MultiplyTiles<EmulatedTiles>,
                      ScratchForTiles);
  EXPECT_FALSE(EmulatedTiles::configured()) << "tiles that are not released are saved at every "
                                               "change of threads";
  return y;
}

class IntegerTiles : public testing::TestWithParam<std::tuple<Codec, int>> {};

TEST_P(IntegerTiles, HaveTheBitsOfVectors) {
  const auto [codec, group] = GetParam();
  for (const int64_t inputs : {32, 100, 704, 1024}) {
    for (const int64_t outputs : {1, 45, 96}) {
      const auto matrix = Pack(RandomBf16(outputs * inputs, 1), outputs, inputs, {codec, group});
      for (const int rows : {1, kIntegerRows, kIntegerRows + 1, 13, 16, 17, 31, 32, 129, 145}) {
        Floats x = RandomFloats(rows * inputs, 2);
        std::fill_n(x.begin(), std::min<int64_t>(group, inputs), 0.0f);
        const Floats by_vectors =
            Multiply(*matrix, x, rows, kIntegerRows, PackX, MatMul, NoScratch);
        ASSERT_EQ(ByTiles(*matrix, x, rows), by_vectors)
            << inputs << " inputs, " << outputs << " outputs, " << rows << " rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, IntegerTiles,
                         testing::Combine(testing::Values(Codec::kInt8, Codec::kInt4),
                                          testing::Values(32, 64, 128)));

TEST(Bf16Tiles, AreProductsOfRoundedInputs) {
  for (const int64_t inputs : {1, 2, 30, 31, 32, 33, 63, 64, 257, 1024}) {
    for (const int64_t outputs : {1, 31, 32, 70}) {
      const auto weights = RandomBf16(outputs * inputs, 3);
      const auto matrix = Pack(weights, outputs, inputs, {});
      for (const int rows : {1, 2, 15, 16, 17, 32, 33, 50}) {
        const Floats x = RandomFloats(rows * inputs, 4);
        const Floats y = ByTiles(*matrix, x, rows);
        for (int row = 0; row < rows; ++row) {
          for (int64_t out = 0; out < outputs; ++out) {
            double sum = 0, magnitudes = 0;
            for (int64_t i = 0; i < inputs; ++i) {
              const double term =
                  double{Rounded(x[row * inputs + i])} * Bf16ToFloat(weights[out * inputs + i]);
              sum += term;
              magnitudes += std::fabs(term);
            }
            ASSERT_NEAR(y[row * outputs + out], sum, 1e-6 * magnitudes)
                << inputs << " inputs, output " << out << ", row " << row << " of " << rows;
          }
        }
      }
    }
  }
}

class Bf16TilesOf : public testing::TestWithParam<int64_t> {};

TEST_P(Bf16TilesOf, ARowHasTheSameBitsAloneAndBesideOthers) {
  const int64_t inputs = GetParam();
  constexpr int64_t kOutputs = 70;
  const auto matrix = Pack(RandomBf16(kOutputs * inputs, 5), kOutputs, inputs, {});
  for (const int rows : {2, 16, 17, 40, 64}) {
    const Floats x = RandomFloats(rows * inputs, 6);
    const Floats together = ByTiles(*matrix, x, rows);
    for (int row = 0; row < rows; ++row) {
      const Floats one(x.begin() + row * inputs, x.begin() + (row + 1) * inputs);
      const Floats of_row(together.begin() + row * kOutputs,
                          together.begin() + (row + 1) * kOutputs);
      ASSERT_EQ(ByTiles(*matrix, one, 1), of_row) << "row " << row << " of " << rows;
    }
  }
}

// The second has a slice that ends within a tile.
INSTANTIATE_TEST_SUITE_P(OneSliceAndThree, Bf16TilesOf, testing::Values(300, 4 * kSlicePairs + 38));

TEST(Bf16Tiles, WhatIsNotANumberStaysSo) {
  constexpr int64_t kInputs = 40;
  const auto matrix = Pack(RandomBf16(kInputs, 7), 1, kInputs, {});
  Floats x = RandomFloats(2 * kInputs, 8);
  x[3] = std::bit_cast<float>(0xffffffffu);
  x[kInputs + 5] = INFINITY;
  const Floats y = ByTiles(*matrix, x, 2);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isinf(y[1]));
}

}  // namespace
}  // namespace folio::cpu::emulated_amx
