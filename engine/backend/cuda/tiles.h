#pragma once

#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {

// Where a query of a tile leaves its result; whole: divided by its sum, else as a state.
struct Destination {
  float* to;
  bool whole;
};

// A state of a row that chooses chunks: slot 0 is what its tile shares, slot 1 + k its k-th pick.
FOLIO_HOST_DEVICE float* StateOf(const TileArgs& a, int place, int head, int slot) {
  const int64_t first_head = int64_t{a.first_kv_head} * a.g.group();
  const int64_t heads = int64_t{a.num_kv_heads} * a.g.group();
  return a.states +
         ((place * heads + head - first_head) * (a.picks.capacity + 1) + slot) * (a.g.head_dim + 2);
}

}  // namespace folio::cuda
