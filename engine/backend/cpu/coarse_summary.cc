#include "engine/backend/cpu/coarse_summary.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/base/half.h"

namespace folio {
namespace {

constexpr float kMost = 127.0f;
// Measured (docs/benchmarks/history.md): with fewer, what is scored twice costs what the copies
// save.
constexpr int64_t kTilesPerPick = 16;
constexpr float kLargestFp16 = 65504.0f;
constexpr uint16_t kInfinity = 0x7c00;  // fp16

// The smallest fp16 number that is not below x >= 0.
uint16_t UpToFp16(float x) {
  if (x > kLargestFp16) return kInfinity;
  const uint16_t nearest = FloatToFp16(x);
  return Fp16ToFloat(nearest) < x ? nearest + 1 : nearest;
}

float NumberAt(const KvGeometry& g, const std::byte* tile, int d, int chunk) {
  if (g.dtype == DType::kF32) {
    float number;
    std::memcpy(&number, tile + (int64_t{d} * kTile + chunk) * 4, sizeof(number));
    return number;
  }
  uint16_t bits;
  std::memcpy(&bits, tile + ((int64_t{d} / 2 * kTile + chunk) * 2 + d % 2) * 2, sizeof(bits));
  return Bf16ToFloat(bits);
}

// Of element d of the summaries of a tile.
float Centre(const KvGeometry& g, const std::byte* tile, int d) {
  float sum = 0;
  for (int chunk = 0; chunk < kTile; ++chunk) sum += NumberAt(g, tile, d, chunk);
  return sum / kTile;
}

}  // namespace

CoarseTiles::CoarseTiles(const KvGeometry& g, std::byte* frame, int layer, int head) {
  std::byte* const all = frame + g.coarse_offset(layer);
  std::byte* const all_scales = all + g.num_heads * g.coarse_tile_bytes();
  std::byte* const magnitudes = all_scales + int64_t{g.num_heads} * g.padded_dim * 2;
  tiles = all + head * g.coarse_tile_bytes();
  scales = reinterpret_cast<uint16_t*>(all_scales) + int64_t{head} * g.padded_dim;
  magnitude = reinterpret_cast<float*>(magnitudes) + head;
}

void MakeCoarseTiles(const KvGeometry& g, int num_tiles, std::byte* first_frame, std::byte* frame,
                     int layer, int head) {
  const CoarseTiles to(g, frame, layer, head);
  auto* const integers = reinterpret_cast<int8_t*>(to.tiles);
  const std::byte* const tiles = frame + g.summary_offset(layer, head);
  const std::byte* const first_tile = first_frame + g.summary_offset(layer, head);
  const int num_chunks = num_tiles * kTile;
  std::vector<float> channel(num_chunks);
  std::vector<int> sums(num_chunks);
  for (int d = 0; d < g.padded_dim; ++d) {
    const float centre = Centre(g, first_tile, d);
    float most = 0;
    float furthest = 0;
    bool finite = true;
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const std::byte* const tile = tiles + chunk / kTile * g.summary_tile_bytes();
      const float number = NumberAt(g, tile, d, chunk % kTile);
      channel[chunk] = number - centre;
      most = std::max(most, std::fabs(number));
      furthest = std::max(furthest, std::fabs(channel[chunk]));
      finite = finite && std::isfinite(channel[chunk]);
    }
    const float least_scale = std::max(furthest / kMost, most / kMostScales);
    const uint16_t scale = finite ? UpToFp16(least_scale) : kInfinity;
    to.scales[d] = scale;
    const bool zeros = scale == 0 || scale == kInfinity;
    const float inverse = zeros ? 0.0f : 1.0f / Fp16ToFloat(scale);
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const int integer = zeros ? 0 : static_cast<int>(std::nearbyint(channel[chunk] * inverse));
      const int64_t at = int64_t{chunk} / kTile * g.coarse_tile_bytes() +
                         (d / 4 * kTile + chunk % kTile) * 4 + d % 4;
      integers[at] = static_cast<int8_t>(integer);
      sums[chunk] += std::abs(integer);
    }
  }
  *to.magnitude = static_cast<float>(*std::max_element(sums.begin(), sums.end()));
}

void MakeCoarseFrame(const KvGeometry& g, const SummaryLayout& layout, std::byte* first_frame,
                     std::byte* frame) {
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int head = 0; head < g.num_heads; head += layout.tiles_per_frame) {
      MakeCoarseTiles(g, layout.tiles_per_frame, first_frame, frame, layer, head);
    }
  }
}

int64_t NumCoarseTiles(const KvGeometry& g, const SummaryLayout& layout, int64_t num_chunks,
                       int64_t num_picks) {
  if (!g.coarse_summaries) return 0;
  const int64_t num_frames = num_chunks / layout.ChunksPerFrame();
  const int64_t num_tiles = num_frames * layout.tiles_per_frame;
  return num_tiles < kTilesPerPick * num_picks ? 0 : num_tiles;
}

}  // namespace folio
