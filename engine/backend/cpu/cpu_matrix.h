#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/panel_format.h"
#include "engine/base/worker_pool.h"

namespace folio {

// A weight matrix in panels of 32 outputs (panel_format.h), on huge pages where the system gives
// them. Immutable once it is made.
class CpuMatrix final : public PackedMatrix {
 public:
  // Stacks `parts` by rows. Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CpuMatrix>> Create(std::span<const TensorView> parts,
                                                           const WeightFormat& format,
                                                           WorkerPool* pool);
  // Of what packed() gave once. Errors: those of Backend::ReadPacked.
  static absl::StatusOr<std::unique_ptr<CpuMatrix>> Read(const PackedShape& shape,
                                                         int64_t num_bytes, int64_t part_bytes,
                                                         PackedReader read, WorkerPool* pool);
  ~CpuMatrix() override;
  CpuMatrix(const CpuMatrix&) = delete;
  CpuMatrix& operator=(const CpuMatrix&) = delete;

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return num_bytes_; }
  std::span<const std::byte> packed() const override {
    return {data_, static_cast<size_t>(num_bytes_)};
  }

  const cpu::PanelFormat& format() const { return format_; }
  const std::byte* data() const { return data_; }
  int64_t num_groups() const { return format_.num_groups(cols_); }
  int64_t num_panels() const { return (rows_ + cpu::kPanel - 1) / cpu::kPanel; }
  int64_t panel_bytes() const { return format_.panel_bytes(num_groups()); }

  // Writes row `row` as fp32, [cols].
  void ReadRow(int64_t row, float* out) const;

 private:
  CpuMatrix(const cpu::PanelFormat& format, int64_t rows, int64_t cols)
      : format_(format), rows_(rows), cols_(cols) {}
  absl::Status Allocate();

  const cpu::PanelFormat format_;
  const int64_t rows_;
  const int64_t cols_;
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace folio
