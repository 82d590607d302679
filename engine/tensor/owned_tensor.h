#pragma once

#include <cstddef>
#include <memory>

#include "engine/tensor/tensor_view.h"

namespace folio {

// A tensor with memory of its own, aligned for every dtype. Move-only.
struct OwnedTensor {
  // Of this shape and dtype, the content undefined.
  static OwnedTensor Like(const TensorView& shape) {
    OwnedTensor tensor;
    tensor.data = std::make_unique_for_overwrite<std::byte[]>(shape.num_bytes());
    tensor.view = shape;
    tensor.view.data = tensor.data.get();
    return tensor;
  }

  std::unique_ptr<std::byte[]> data;
  TensorView view;
};

}  // namespace folio
