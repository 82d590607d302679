#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace folio {

enum class DType : uint8_t { kF32, kF16, kBf16, kI32 };

inline constexpr int64_t DTypeBytes(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kI32 ? 4 : 2;
}

inline constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kF16:
      return "fp16";
    case DType::kBf16:
      return "bf16";
    case DType::kI32:
      return "int32";
  }
  return "?";
}

// Names a row-major block of host memory: shape and dtype. Owns nothing.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape = {0, 0, 0, 0};
  // Of a matrix of fp32 that is integers times the scale of their row and group of columns: these
  // scales, [rows][ceil(columns / scale_group)]; else null.
  const float* scales = nullptr;
  int scale_group = 0;

  int64_t num_elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  int64_t num_bytes() const { return num_elements() * DTypeBytes(dtype); }
  bool empty() const { return data == nullptr; }
};

}  // namespace folio
