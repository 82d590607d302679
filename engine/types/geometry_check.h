#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/types/kv_types.h"

namespace folio {

// Whether a backend can hold a cache of this geometry. Errors: INVALID_ARGUMENT.
inline absl::Status CheckGeometry(const KvGeometry& g) {
  if (g.head_dim < 2 || g.head_dim % 2 != 0 || g.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", g.head_dim, ", must be even and at most ", kMaxHeadDim));
  }
  if (g.page_tokens < kMinPageTokens || g.page_tokens % kTile != 0 ||
      g.page_tokens > kMaxPageTokens) {
    return absl::InvalidArgumentError(absl::StrCat("page_tokens is ", g.page_tokens,
                                                   ", must be a multiple of ", kTile,
                                                   " and at most ", kMaxPageTokens));
  }
  if (g.num_kv_heads < 1 || g.num_heads % g.num_kv_heads != 0) {
    return absl::InvalidArgumentError("num_heads must be a multiple of num_kv_heads");
  }
  const bool sealed = g.sealed_bits == 8 || g.sealed_bits == 4;
  if (g.sealed_bits != 0 && (!sealed || g.dtype != DType::kBf16)) {
    return absl::InvalidArgumentError(absl::StrCat("complete pages of ", g.sealed_bits,
                                                   " bits: must be 8 or 4, the others bf16"));
  }
  return absl::OkStatus();
}

}  // namespace folio
