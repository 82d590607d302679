#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/family.h"
#include "engine/tensor/owned_tensor.h"
#include "engine/types/model_shape.h"

namespace folio {

// Where the elements of a head come from: element e of the engine is element result[e] of the
// checkpoint. The engine turns (m, m + head_dim / 2) by angle m; what a checkpoint does not rotate
// fills the pairs behind those. Empty: the same order. Scores do not depend on it, as q, k, v and
// the output's inputs share it.
std::vector<int> HeadOrder(int head_dim, int rotary_dim, DecoderStyle::RotaryPairs pairs);

// Where the rows of q (which 0), k (1) or v (2) come from, in the engine's order: rows of the
// tensor that all three are in, or of its own. `order` is a HeadOrder.
std::vector<int64_t> QkvRows(const ModelShape& shape, const DecoderStyle& style,
                             const std::vector<int>& order, int which);

// Rows or columns of `tensor` in the given order. Scales go with their rows.
OwnedTensor TakeRows(const TensorView& tensor, const std::vector<int64_t>& rows);
OwnedTensor TakeColumns(const TensorView& tensor, const std::vector<int64_t>& columns);

}  // namespace folio
