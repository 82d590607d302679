// Matrix products on the matrix unit (amx_tiles.h). `Tiles` are its instructions.
#pragma once

#include "engine/backend/cpu/kernels/amx_bf16_matmul-inl.h"
#include "engine/backend/cpu/kernels/amx_integer_matmul-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/matmul-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

template <typename Tiles>
void MultiplyTiles(const PanelFormat& format, const MatMulArgs& args) {
  switch (format.codec) {
    case PanelFormat::Codec::kBf16:
      return MultiplyBf16Tiles<Tiles>(args);
    case PanelFormat::Codec::kInt8:
      return MultiplyIntegerTiles<Tiles, Int8Panels>(format, args);
    case PanelFormat::Codec::kInt4:
      return MultiplyIntegerTiles<Tiles, Int4Panels>(format, args);
    default:
      return MatMul(format, args);
  }
}

int64_t ScratchForTiles(const PanelFormat& format, const MatMulArgs& args) {
  if (format.codec == PanelFormat::Codec::kBf16) return Bf16ScratchBytes(args);
  return format.integers() ? IntegerScratchBytes(format, args) : 0;
}

void PackXForTiles(const PanelFormat& format, const float* x, int num_rows, int64_t inputs,
                   uint32_t* packed) {
  if (format.codec == PanelFormat::Codec::kBf16) return PackBf16Tiles(x, num_rows, inputs, packed);
  if (format.integers() && TakesTiles(num_rows)) {
    return PackIntegerTiles(format.group, x, num_rows, inputs, packed);
  }
  PackX(format, x, num_rows, inputs, packed);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
