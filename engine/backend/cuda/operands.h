#pragma once

#include <algorithm>
#include <optional>

#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/workspace.h"

namespace folio::cuda {

// Activations in the format of the weights, as products on tensor cores read them. A kernel that
// writes what a product is likely to read writes it in both formats; the rest is converted when it
// is read.
class Operands {
 public:
  explicit Operands(CudaMemory* memory) : memory_(memory), space_(memory) {}

  // There is a matrix with so many columns of 16-bit numbers.
  void Expect(Weight dtype, int64_t columns) {
    if (dtype == Weight::kF32) return;
    mixed_ = mixed_ || (dtype_.has_value() && *dtype_ != dtype);
    dtype_ = dtype;
    columns_ = std::max(columns_, columns);
  }
  // Takes memory for steps of so many rows.
  void Allocate(int max_rows) { space_.Get<uint16_t>(max_rows * columns_); }

  void BeginStep() { of_ = nullptr; }

  // Where a kernel that writes x [num_rows, width] is to write it once more; may be nowhere.
  Twin TwinOf(const float* x, int num_rows, int width) {
    Forget(x);
    if (!dtype_.has_value() || mixed_ || width > columns_) return {};
    if (GemvTakes(*dtype_, num_rows, width)) return {};
    auto* data = space_.Get<uint16_t>(int64_t{num_rows} * width);
    if (data == nullptr) return {};
    of_ = x;
    count_ = int64_t{num_rows} * width;
    return {data, *dtype_ == Weight::kBf16};
  }
  // Something else is written to x.
  void Forget(const float* x) {
    if (of_ == x) of_ = nullptr;
  }

  // x as a product with `dtype` reads it; null without memory.
  const void* Get(Weight dtype, const float* x, int64_t count) {
    if (dtype == Weight::kF32) return x;
    auto* data = space_.Get<uint16_t>(count);
    if (data == nullptr || (of_ == x && count_ == count && dtype == *dtype_)) return data;
    of_ = nullptr;
    Convert(memory_->stream(), x, count, {data, dtype == Weight::kBf16});
    return data;
  }

 private:
  CudaMemory* const memory_;
  Workspace space_;
  std::optional<Weight> dtype_;
  bool mixed_ = false;
  int64_t columns_ = 0;
  // What space_ holds; null: nothing that anybody may count on.
  const float* of_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace folio::cuda
