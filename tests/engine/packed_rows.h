#pragma once

#include <span>
#include <vector>

#include "engine/backend/cpu/cpu_matrix.h"
#include "engine/base/worker_pool.h"

namespace folio::test {

// The numbers of a matrix once the CPU backend has packed them, [rows][columns].
inline std::vector<float> PackedAndRead(const TensorView& matrix, const WeightFormat& format) {
  WorkerPool pool(1);
  const auto packed = CpuMatrix::Create(std::span(&matrix, 1), format, &pool);
  std::vector<float> numbers(matrix.num_elements());
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    (*packed)->ReadRow(row, &numbers[row * matrix.shape[1]]);
  }
  return numbers;
}

}  // namespace folio::test
