#include "engine/backend/cpu/cpu_matrix.h"

#include <sys/mman.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/half.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr int kPanel = cpu::kPanel;

}  // namespace

int64_t CpuMatrix::num_panels() const { return (rows_ + kPanel - 1) / kPanel; }

int64_t CpuMatrix::panel_bytes() const { return num_pairs() * 2 * kPanel * DTypeBytes(dtype_); }

absl::Status CpuMatrix::Allocate() {
  num_bytes_ = num_panels() * panel_bytes();
  void* memory =
      mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a weight matrix of ", num_bytes_, " bytes"));
  }
  data_ = static_cast<std::byte*>(memory);
  // Fewer TLB misses on a stream of gigabytes; a refusal costs speed only.
  madvise(data_, num_bytes_, MADV_HUGEPAGE);
  return absl::OkStatus();
}

CpuMatrix::~CpuMatrix() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

int64_t CpuMatrix::Offset(int64_t row, int64_t col) const {
  const int64_t lane = row % kPanel;
  const int64_t pair = row / kPanel * panel_bytes() + col / 2 * 2 * kPanel * DTypeBytes(dtype_);
  if (dtype_ == DType::kBf16) return pair + (lane * 2 + col % 2) * 2;
  return pair + (col % 2 * kPanel + lane) * DTypeBytes(dtype_);
}

void CpuMatrix::PackRow(const std::byte* source, int64_t row) {
  const int64_t size = DTypeBytes(dtype_);
  const int64_t pair_stride = 2 * kPanel * size;
  const int64_t first = Offset(row, 0);
  const int64_t second = Offset(row, 1) - first;
  for (int64_t col = 0; col < cols_; ++col) {
    std::byte* to = data_ + first + col / 2 * pair_stride + col % 2 * second;
    std::memcpy(to, source + col * size, size);
  }
}

absl::StatusOr<std::unique_ptr<CpuMatrix>> CpuMatrix::Create(std::span<const TensorView> parts,
                                                             WorkerPool* pool) {
  if (parts.empty()) return absl::InvalidArgumentError("a matrix needs at least one part");
  int64_t rows = 0;
  for (const TensorView& part : parts) {
    if (part.rank != 2 || part.dtype != parts[0].dtype || part.shape[1] != parts[0].shape[1] ||
        part.dtype == DType::kI32) {
      return absl::InvalidArgumentError(
          "the parts of a matrix must be 2-dimensional and of one dtype and width");
    }
    rows += part.shape[0];
  }
  std::unique_ptr<CpuMatrix> matrix(new CpuMatrix(parts[0].dtype, rows, parts[0].shape[1]));
  FOLIO_RETURN_IF_ERROR(matrix->Allocate());
  int64_t first_row = 0;
  for (const TensorView& part : parts) {
    const auto* source = static_cast<const std::byte*>(part.data);
    const int64_t row_bytes = part.shape[1] * DTypeBytes(part.dtype);
    // Whole panels per task: neighbours in a panel share cache lines.
    const int64_t begin_panel = first_row / kPanel;
    const int64_t end_row = first_row + part.shape[0];
    const int64_t num_panels = (end_row - 1) / kPanel - begin_panel + 1;
    pool->ParallelFor(num_panels, [&](int64_t task, int) {
      const int64_t panel = begin_panel + task;
      const int64_t from = std::max(first_row, panel * kPanel);
      const int64_t to = std::min(end_row, (panel + 1) * kPanel);
      for (int64_t row = from; row < to; ++row) {
        matrix->PackRow(source + (row - first_row) * row_bytes, row);
      }
    });
    first_row = end_row;
  }
  return matrix;
}

void CpuMatrix::ReadRow(int64_t row, float* out) const {
  for (int64_t col = 0; col < cols_; ++col) {
    const std::byte* at = data_ + Offset(row, col);
    if (dtype_ == DType::kF32) {
      std::memcpy(&out[col], at, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, at, 2);
    out[col] = dtype_ == DType::kBf16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
  }
}

}  // namespace folio
