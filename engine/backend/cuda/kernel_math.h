#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/backend/cuda/device_types.h"

namespace folio::cuda {

// Small parts of the kernels.

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

FOLIO_DEVICE float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
FOLIO_DEVICE float FromBf16(uint32_t bits) { return FromBits(bits << 16); }
FOLIO_DEVICE float FromFp16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FromBits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return FromBits(sign | magnitude << 13) * 5192296858534827628530496329220096.0f;  // 2^112
}

// Towards the nearest, ties to even; what is too large becomes infinite.
FOLIO_DEVICE uint16_t ToFp16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits >= 0x7f800000u)
    return static_cast<uint16_t>(sign | (bits > 0x7f800000u ? 0x7e00u : 0x7c00u));
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    const float shifted = FromBits(bits) + 0.5f;
    uint32_t sum;
    memcpy(&sum, &shifted, sizeof(sum));
    return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

// Towards the nearest, ties to even; the value is finite.
FOLIO_DEVICE uint16_t ToBf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// As the cache keeps it.
template <Cache kCache>
FOLIO_DEVICE float InCache(float value) {
  return kCache == Cache::kBf16 ? FromBf16(ToBf16(value)) : value;
}

// base/splitmix.h
FOLIO_DEVICE uint64_t SplitMix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

FOLIO_DEVICE float WarpSum(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}
FOLIO_DEVICE float WarpMax(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lane));
  }
  return x;
}

// Sum over a block of at most 32 warps; every thread gets it. `scratch` holds 32 floats.
FOLIO_DEVICE float BlockSum(float x, float* scratch) {
  x = WarpSum(x);
  const int warp = threadIdx.x / kWarp;
  const int num_warps = (blockDim.x + kWarp - 1) / kWarp;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < num_warps; ++w) sum += scratch[w];
  return sum;
}

// Elements of one slice (kv_types.h).
template <Cache kCache>
FOLIO_DEVICE float KeyAt(const unsigned char* keys, int key_dim, int token, int d) {
  const int lane = token % kTileTokens;
  const int tile = token / kTileTokens * kTileTokens * key_dim;
  if (kCache == Cache::kBf16) {
    return FromBf16(
        reinterpret_cast<const uint16_t*>(keys)[tile + (d / 2 * kTileTokens + lane) * 2 + d % 2]);
  }
  return reinterpret_cast<const float*>(keys)[tile + d * kTileTokens + lane];
}

template <Cache kCache>
FOLIO_DEVICE void SetKey(unsigned char* keys, int key_dim, int token, int d, float value) {
  const int lane = token % kTileTokens;
  const int tile = token / kTileTokens * kTileTokens * key_dim;
  if (kCache == Cache::kBf16) {
    reinterpret_cast<uint16_t*>(keys)[tile + (d / 2 * kTileTokens + lane) * 2 + d % 2] =
        ToBf16(value);
  } else {
    reinterpret_cast<float*>(keys)[tile + d * kTileTokens + lane] = value;
  }
}

template <Cache kCache>
FOLIO_DEVICE float ValueAt(const unsigned char* values, int dim, int token, int d) {
  if (kCache == Cache::kBf16) {
    return FromBf16(
        reinterpret_cast<const uint16_t*>(values)[token / 2 * 2 * dim + d * 2 + token % 2]);
  }
  return reinterpret_cast<const float*>(values)[token * dim + d];
}

template <Cache kCache>
FOLIO_DEVICE void SetValue(unsigned char* values, int dim, int token, int d, float value) {
  if (kCache == Cache::kBf16) {
    reinterpret_cast<uint16_t*>(values)[token / 2 * 2 * dim + d * 2 + token % 2] = ToBf16(value);
  } else {
    reinterpret_cast<float*>(values)[token * dim + d] = value;
  }
}

// Pair m of a vector turned by cos_sin (cos [half], sin [half]).
struct Pair {
  float x;
  float y;
};
FOLIO_DEVICE Pair Turn(Pair p, const float* cos_sin, int m, int half, float sign) {
  const float c = cos_sin[m];
  const float s = sign * cos_sin[half + m];
  return {p.x * c - p.y * s, p.y * c + p.x * s};
}

// Pair m of a key in the form that is wanted: as it is stored, or turned by its offset in the page.
template <Cache kCache>
FOLIO_DEVICE Pair KeyPair(const Geometry& g, const unsigned char* keys, int token, int m,
                          const float* turn) {
  const int half = g.half();
  Pair p;
  p.x = KeyAt<kCache>(keys, g.key_dim, token, m);
  p.y = g.paired_keys ? p.x : KeyAt<kCache>(keys, g.key_dim, token, m + half);
  return turn == nullptr ? p : Turn(p, turn, m, half, 1.0f);
}

FOLIO_DEVICE const float* QueryOf(const Geometry& g, const float* qkv, int row, int head) {
  return qkv + int64_t{row} * g.qkv_width() + int64_t{head} * g.head_dim;
}

}  // namespace folio::cuda
