#include "engine/backend/cpu/cpu_product.h"

#include <algorithm>

namespace folio {

const uint32_t* CpuProduct::PackRows(const CpuMatrix& matrix, const float* x, int num_rows) {
  const int64_t inputs = matrix.cols();
  const int64_t row_words = matrix.num_groups() * matrix.format().x_words();
  auto* const packed_x = packed_x_.Get<uint32_t>(num_rows * row_words);
  const int block = kernels_.block_rows(matrix.format());
  pool_->ParallelFor((num_rows + block - 1) / block, [&](int64_t task, int) {
    const int row = static_cast<int>(task) * block;
    kernels_.pack_x(matrix.format(), x + row * inputs, std::min(block, num_rows - row), inputs,
                    packed_x + row * row_words);
  });
  return packed_x;
}

void CpuProduct::Do(const CpuMatrix& matrix, const float* x, int num_rows,
                    std::span<const float> bias, Backend::Output output, float* y) {
  if (num_rows == 0) return;
  const int64_t row_words = matrix.num_groups() * matrix.format().x_words();
  const Share share = ShareOf(matrix, num_rows);
  cpu::MatMulArgs args;
  args.panels = matrix.data();
  args.panel_bytes = matrix.panel_bytes();
  args.num_groups = matrix.num_groups();
  args.x = PackRows(matrix, x, num_rows);
  args.num_rows = share.num_rows;
  args.num_outputs = matrix.rows();
  args.bias = bias.empty() ? nullptr : bias.data();
  args.add = output == Backend::Output::kAdd;
  args.fetch_integers = fetch_integers_;
  args.y = y;
  args.panel_end = share.num_panels;
  const int64_t scratch_bytes = kernels_.matmul_scratch_bytes(matrix.format(), args);
  const int64_t num_panels = matrix.num_panels();
  const int64_t shares_of_panels = (num_panels + share.num_panels - 1) / share.num_panels;
  const int64_t shares_of_rows = (num_rows + share.num_rows - 1) / share.num_rows;
  shares_.Begin(shares_of_rows * shares_of_panels);
  pool_->ParallelFor(shares_of_rows * shares_of_panels, [&](int64_t, int thread) {
    const int64_t task = shares_.Next(thread);
    const int row = static_cast<int>(task / shares_of_panels) * share.num_rows;
    cpu::MatMulArgs part = args;
    part.x = args.x + row * row_words;
    part.y = y + row * matrix.rows();
    part.num_rows = std::min(share.num_rows, num_rows - row);
    part.scratch = scratch_[thread].Get<std::byte>(scratch_bytes);
    part.panel_begin = task % shares_of_panels * share.num_panels;
    part.panel_end = std::min(num_panels, part.panel_begin + share.num_panels);
    kernels_.matmul(matrix.format(), part);
  });
}

// One block of rows: long contiguous streams. Many: what meets stays in a cache.
CpuProduct::Share CpuProduct::ShareOf(const CpuMatrix& matrix, int num_rows) const {
  const int64_t by_threads = std::max<int64_t>(1, matrix.num_panels() / (4 * pool_->num_threads()));
  if (num_rows <= kernels_.block_rows(matrix.format())) return {num_rows, by_threads};
  const int rows = kernels_.rows_at_once(matrix.format());
  if (rows > 0) return {std::min(rows, num_rows), by_threads};
  const int64_t by_cache = kernels_.panel_bytes_at_once / matrix.panel_bytes();
  return {num_rows, std::clamp<int64_t>(by_cache, 1, by_threads)};
}

}  // namespace folio
