#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_matrix.h"
#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/scratch_memory.h"
#include "engine/base/task_runs.h"
#include "engine/base/worker_pool.h"

namespace folio {

// Backend::MatMul: products of rows and a matrix, shared out to the threads of a pool. One thread
// calls.
class CpuProduct {
 public:
  // Borrows both.
  CpuProduct(const cpu::Kernels& kernels, WorkerPool* pool)
      : kernels_(kernels),
        pool_(pool),
        shares_(pool->num_threads()),
        scratch_(pool->num_threads()) {}

  void Do(const CpuMatrix& matrix, const float* x, int num_rows, std::span<const float> bias,
          Backend::Output output, float* y);

 private:
  // Rows and panels that a thread takes at a time.
  struct Share {
    int num_rows;
    int64_t num_panels;
  };
  Share ShareOf(const CpuMatrix& matrix, int num_rows) const;
  // In the form that the kernels of the matrix read, [num_rows][groups * x_words].
  const uint32_t* PackRows(const CpuMatrix& matrix, const float* x, int num_rows);

  const cpu::Kernels& kernels_;
  WorkerPool* const pool_;
  const bool fetch_integers_ = FetchesIntegers();
  TaskRuns shares_;
  ScratchMemory packed_x_;
  std::vector<ScratchMemory> scratch_;  // by thread
};

}  // namespace folio
