// A slice of a page in bf16, and the definition of the integers that it becomes (kv_types.h,
// docs/methods.md, section 14).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "engine/base/half.h"
#include "engine/types/kv_types.h"

namespace folio::test {

using Floats = std::vector<float>;

inline KvGeometry Geometry(int bits, int head_dim, int page_tokens, bool paired = false) {
  KvGeometry geometry = KvGeometry::Make({.num_layers = 1,
                                          .num_heads = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = head_dim,
                                          .paired_keys = paired},
                                         page_tokens, DType::kBf16);
  geometry.sealed_bits = bits;
  return geometry;
}

// Where the layouts of kv_types.h have a number of a key or value: its index, in numbers, where
// `rows` dims of keys, or tokens of values, lie side by side: two in open pages, four in complete
// ones.
inline int64_t KeyIndex(const KvGeometry& g, int token, int d, int rows) {
  const int64_t line = int64_t{token} / 16 * (g.padded_key_dim() / rows) + d / rows;
  return (line * 16 + token % 16) * rows + d % rows;
}
inline int64_t ValueIndex(const KvGeometry& g, int token, int d, int rows) {
  return (int64_t{token} / rows * g.padded_dim + d) * rows + token % rows;
}
// The same of 4 bits: the byte, and whether the number is its low bits.
inline std::pair<int64_t, bool> KeyNibble(const KvGeometry& g, int token, int d) {
  const int64_t line = int64_t{token} / 16 * (g.padded_key_dim() / 8) + d / 8;
  return {(line * 16 + token % 16) * 4 + d % 4, d / 4 % 2 == 0};
}
inline std::pair<int64_t, bool> ValueNibble(const KvGeometry& g, int token, int d) {
  return {(int64_t{token} / 8 * g.padded_dim + d) * 4 + token % 4, token / 4 % 2 == 0};
}

struct OpenSlice {
  explicit OpenSlice(const KvGeometry& g) : geometry(g), bytes(g.slice_bytes()) {}
  OpenSlice(const OpenSlice&) = default;
  OpenSlice& operator=(const OpenSlice& other) {  // of the same geometry
    bytes = other.bytes;
    return *this;
  }
  void SetKey(int token, int d, float x) { Set(KeyIndex(geometry, token, d, 2), x); }
  void SetValue(int token, int d, float x) {
    Set(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d, 2), x);
  }
  float Key(int token, int d) const { return Get(KeyIndex(geometry, token, d, 2)); }
  float Value(int token, int d) const {
    return Get(geometry.key_bytes() / 2 + ValueIndex(geometry, token, d, 2));
  }

  const KvGeometry geometry;
  std::vector<std::byte> bytes;

 private:
  void Set(int64_t at, float x) {
    const uint16_t bits = FloatToBf16(x);
    std::memcpy(&bytes[at * 2], &bits, 2);
  }
  float Get(int64_t at) const {
    uint16_t bits;
    std::memcpy(&bits, &bytes[at * 2], 2);
    return Bf16ToFloat(bits);
  }
};

inline int StoredDim(const KvGeometry& g) { return g.paired_keys ? g.head_dim / 2 : g.head_dim; }

// Numbers of all sizes: channels that are zero, tiny and huge.
inline OpenSlice RandomSlice(const KvGeometry& g, uint64_t seed) {
  OpenSlice slice(g);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int t = 0; t < g.page_tokens; ++t) {
    for (int d = 0; d < StoredDim(g); ++d) {
      const float size = d == 0 ? 0.0f : d == 1 ? 1e-35f : d == 2 ? 1e4f : 1.0f;
      slice.SetKey(t, d, size * normal(random));
    }
    const float size = t == 0 ? 0.0f : t == 1 ? 300.0f : 1.0f;
    for (int d = 0; d < g.head_dim; ++d) slice.SetValue(t, d, size * normal(random));
  }
  return slice;
}

// The definition: {integer, scale} of x among numbers of which m is the largest magnitude.
inline std::pair<int, float> Defined(float x, float m, int bits) {
  const float n = bits == 8 ? 127.0f : 7.0f;
  if (m <= 1e-30f) return {0, m / n};
  return {static_cast<int>(std::nearbyint(x * (n / m))), m / n};
}
inline float LargestKey(const OpenSlice& slice, int d) {
  float m = 0;
  for (int t = 0; t < slice.geometry.page_tokens; ++t) m = std::max(m, std::fabs(slice.Key(t, d)));
  return m;
}
inline float LargestOfValue(const OpenSlice& slice, int token) {
  float m = 0;
  for (int d = 0; d < slice.geometry.head_dim; ++d)
    m = std::max(m, std::fabs(slice.Value(token, d)));
  return m;
}

}  // namespace folio::test
