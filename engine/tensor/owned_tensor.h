#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/tensor/tensor_view.h"

namespace folio {

// A tensor with memory of its own, aligned for every dtype. Move-only.
struct OwnedTensor {
  // Of this shape and dtype, the content undefined, without scales.
  static OwnedTensor Like(const TensorView& shape) {
    OwnedTensor tensor;
    tensor.data = std::make_unique_for_overwrite<std::byte[]>(shape.num_bytes());
    tensor.view = shape;
    tensor.view.data = tensor.data.get();
    tensor.view.scales = nullptr;
    tensor.view.scale_group = 0;
    return tensor;
  }

  // Says of a matrix what TensorView::scales says.
  void SetScales(std::vector<float> of_groups, int group) {
    scales = std::move(of_groups);
    view.scales = scales.data();
    view.scale_group = group;
  }

  std::unique_ptr<std::byte[]> data;
  std::vector<float> scales;
  TensorView view;
};

}  // namespace folio
