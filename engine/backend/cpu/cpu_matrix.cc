#include "engine/backend/cpu/cpu_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/numa.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr int kPanel = cpu::kPanel;

cpu::RowScales ScalesOf(const TensorView& part, int64_t row) {
  if (part.scales == nullptr) return {};
  const int64_t groups = (part.shape[1] + part.scale_group - 1) / part.scale_group;
  return {part.scales + row * groups, part.scale_group};
}

}  // namespace

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
  InterleaveOverNodes(data_, num_bytes_);
  return absl::OkStatus();
}

CpuMatrix::~CpuMatrix() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

absl::StatusOr<std::unique_ptr<CpuMatrix>> CpuMatrix::Create(std::span<const TensorView> parts,
                                                             const WeightFormat& format,
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
  const DType given = parts[0].dtype;
  const int64_t cols = parts[0].shape[1];
  std::unique_ptr<CpuMatrix> matrix(new CpuMatrix(cpu::PanelFormat::Of(given, format), rows, cols));
  FOLIO_RETURN_IF_ERROR(matrix->Allocate());
  int64_t first_row = 0;
  for (const TensorView& part : parts) {
    const auto* source = static_cast<const std::byte*>(part.data);
    const int64_t row_bytes = cols * DTypeBytes(given);
    // Whole panels per task: neighbours in a panel share cache lines.
    const int64_t begin_panel = first_row / kPanel;
    const int64_t end_row = first_row + part.shape[0];
    const int64_t num_panels = (end_row - 1) / kPanel - begin_panel + 1;
    pool->ParallelFor(num_panels, [&](int64_t task, int) {
      const int64_t panel = begin_panel + task;
      const int64_t from = std::max(first_row, panel * kPanel);
      const int64_t to = std::min(end_row, (panel + 1) * kPanel);
      std::byte* const packed = matrix->data_ + panel * matrix->panel_bytes();
      for (int64_t row = from; row < to; ++row) {
        const int64_t of_part = row - first_row;
        cpu::PackPanelRow(matrix->format_, given, source + of_part * row_bytes, cols,
                          ScalesOf(part, of_part), static_cast<int>(row % kPanel), packed);
      }
    });
    first_row = end_row;
  }
  return matrix;
}

absl::StatusOr<std::unique_ptr<CpuMatrix>> CpuMatrix::Read(const PackedShape& shape,
                                                           int64_t num_bytes, int64_t part_bytes,
                                                           PackedReader read, WorkerPool* pool) {
  const auto format = cpu::PanelFormat::Of(shape.given, shape.format);
  std::unique_ptr<CpuMatrix> matrix(new CpuMatrix(format, shape.rows, shape.cols));
  const int64_t expected = matrix->num_panels() * matrix->panel_bytes();
  if (num_bytes != expected) {
    return absl::InvalidArgumentError(absl::StrCat("a packed matrix of ", shape.rows, " x ",
                                                   shape.cols, " has ", expected, " bytes, not ",
                                                   num_bytes));
  }
  FOLIO_RETURN_IF_ERROR(matrix->Allocate());
  std::vector<absl::Status> of_thread(pool->num_threads());
  pool->ParallelFor((num_bytes + part_bytes - 1) / part_bytes, [&](int64_t part, int thread) {
    if (!of_thread[thread].ok()) return;
    const int64_t begin = part * part_bytes;
    const auto size = static_cast<size_t>(std::min(part_bytes, num_bytes - begin));
    of_thread[thread] = read(begin, {matrix->data_ + begin, size});
  });
  for (const absl::Status& status : of_thread) FOLIO_RETURN_IF_ERROR(status);
  return matrix;
}

void CpuMatrix::ReadRow(int64_t row, float* out) const {
  cpu::ReadPanelRow(format_, data_ + row / kPanel * panel_bytes(), static_cast<int>(row % kPanel),
                    cols_, out);
}

}  // namespace folio
