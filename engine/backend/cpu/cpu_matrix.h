#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/base/worker_pool.h"

namespace folio {

// A weight matrix in panels of 32 outputs (layout: kernels.h, MatMulArgs), in its checkpoint's
// dtype, on huge pages where the system gives them. Immutable after Create.
class CpuMatrix final : public PackedMatrix {
 public:
  // Stacks `parts` by rows. Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CpuMatrix>> Create(std::span<const TensorView> parts,
                                                           WorkerPool* pool);
  ~CpuMatrix() override;
  CpuMatrix(const CpuMatrix&) = delete;
  CpuMatrix& operator=(const CpuMatrix&) = delete;

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return num_bytes_; }

  DType dtype() const { return dtype_; }
  const std::byte* data() const { return data_; }
  int64_t num_pairs() const { return (cols_ + 1) / 2; }
  int64_t num_panels() const;
  int64_t panel_bytes() const;

  // Writes row `row` as fp32, [cols].
  void ReadRow(int64_t row, float* out) const;

 private:
  CpuMatrix(DType dtype, int64_t rows, int64_t cols) : dtype_(dtype), rows_(rows), cols_(cols) {}
  absl::Status Allocate();
  // Byte offset of an element inside the matrix.
  int64_t Offset(int64_t row, int64_t col) const;
  void PackRow(const std::byte* source, int64_t row);

  const DType dtype_;
  const int64_t rows_;
  const int64_t cols_;
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace folio
