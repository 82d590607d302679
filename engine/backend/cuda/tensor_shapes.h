#pragma once

#include "engine/backend/cuda/device_types.h"

namespace folio::cuda {

// What the tensor-core kernels are compiled for: head dimension, and tokens of a page that are seen
// at once.

// Whether they can read a cache at all.
inline bool HasTensorShape(const Geometry& g) {
  if (g.cache != Cache::kBf16 || g.paired_keys || g.coca_query != CocaQuery::kNone) return false;
  if (g.page_tokens % 64 == 0) {
    return g.head_dim == 32 || g.head_dim == 64 || g.head_dim == 128 || g.head_dim == 256;
  }
  return g.page_tokens % 16 == 0 && g.head_dim == 32;
}

// Calls f<head_dim, tokens>(). REQUIRES: HasTensorShape(g).
template <typename F>
void WithTensorShape(const Geometry& g, F f) {
  if (g.page_tokens % 64 != 0) return f.template operator()<32, 16>();
  switch (g.head_dim) {
    case 32:
      return f.template operator()<32, 64>();
    case 64:
      return f.template operator()<64, 64>();
    case 128:
      return f.template operator()<128, 64>();
    default:
      return f.template operator()<256, 64>();
  }
}

}  // namespace folio::cuda
