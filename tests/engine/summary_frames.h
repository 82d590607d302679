// Frames of chunk summaries with 8-bit copies (kv_types.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "engine/base/half.h"
#include "engine/types/kv_types.h"

namespace folio::test {

inline KvGeometry CoarseGeometry(DType dtype, int num_heads, int num_kv_heads, int head_dim) {
  KvGeometry geometry = KvGeometry::Make(
      {.num_layers = 2, .num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = head_dim},
      16, dtype);
  geometry.coarse_summaries = true;
  return geometry;
}

// Summary frames as they lie in memory.
struct SummaryFrames {
  SummaryFrames(const KvGeometry& geometry, int count)
      : g(geometry), bytes(count * geometry.summary_frame_bytes()) {}

  std::byte* Frame(int frame) { return bytes.data() + frame * g.summary_frame_bytes(); }
  // Element d of the summary in a lane of a tile, as kv_types.h lays out 16 keys.
  void Set(int frame, int layer, int place, int d, int lane, float x) {
    std::byte* const tile = Frame(frame) + g.summary_offset(layer, place);
    if (g.dtype == DType::kF32) {
      std::memcpy(tile + (d * kTile + lane) * 4, &x, 4);
    } else {
      const uint16_t bits = FloatToBf16(x);
      std::memcpy(tile + ((d / 2 * kTile + lane) * 2 + d % 2) * 2, &bits, 2);
    }
  }
  float Get(int frame, int layer, int place, int d, int lane) {
    const std::byte* const tile = Frame(frame) + g.summary_offset(layer, place);
    float x;
    uint16_t bits;
    if (g.dtype == DType::kF32) {
      std::memcpy(&x, tile + (d * kTile + lane) * 4, 4);
      return x;
    }
    std::memcpy(&bits, tile + ((d / 2 * kTile + lane) * 2 + d % 2) * 2, 2);
    return Bf16ToFloat(bits);
  }
  // The mean of element d in the first tile of a head.
  float Centre(int layer, int place, int d) {
    float sum = 0;
    for (int lane = 0; lane < kTile; ++lane) sum += Get(0, layer, place, d, lane);
    return sum / kTile;
  }
  // Channels of all sizes, one of zeros, one whose numbers are nearly the same, and one in which
  // they differ by what is the last of 8 bits.
  static float Common(int d) { return d == 1 ? 30.0f : d == 3 ? 500.0f : 0.0f; }
  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int frame = 0; frame * g.summary_frame_bytes() < std::ssize(bytes); ++frame) {
      for (int layer = 0; layer < g.num_layers; ++layer) {
        for (int place = 0; place < g.num_heads; ++place) {
          for (int lane = 0; lane < kTile; ++lane) {
            for (int d = 0; d < g.head_dim; ++d) {
              const float x = normal(random);
              const float size = d == 0 ? 0.0f : d == 2 ? 1e-6f : d == 3 ? 0.25f : 1.0f;
              Set(frame, layer, place, d, lane, Common(d) + size * x);
            }
          }
        }
      }
    }
  }

  const KvGeometry g;
  std::vector<std::byte> bytes;
};

}  // namespace folio::test
