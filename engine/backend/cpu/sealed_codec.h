#pragma once

#include <cstddef>

#include "engine/types/kv_types.h"

namespace folio {

// The parts of a slice of a complete page (kv_types.h, KvGeometry::sealed_bits).
struct SealedSlice {
  SealedSlice(const KvGeometry& geometry, const std::byte* slice)
      : keys(slice),
        values(keys + geometry.sealed_key_bytes()),
        key_scales(reinterpret_cast<const float*>(values + geometry.sealed_value_bytes())),
        value_scales(key_scales + geometry.padded_key_dim()) {}

  const std::byte* keys;
  const std::byte* values;
  const float* key_scales;    // [padded_key_dim]
  const float* value_scales;  // [page_tokens]
};

// A slice of a page whose last token has been written, as integers: with m the largest magnitude in
// one channel of its keys, or in one of its values, and n = 127 or 7, x becomes x * (n / m) rounded
// to nearest, ties to even, and the scale is m / n; all in fp32. Where m is 1e-30 or less all are
// zero. Where one of them is not finite the scale is infinite and all are zero, so that whatever
// reads them is no number either.
void SealSlice(const KvGeometry& geometry, const std::byte* open, std::byte* sealed);

// Its numbers, rounded to bf16 where an open page has them.
void UnsealSlice(const KvGeometry& geometry, const std::byte* sealed, std::byte* open);

// One value, head_dim numbers.
void ReadSealedValue(const KvGeometry& geometry, const std::byte* sealed, int token, float* out);

}  // namespace folio
