#include "engine/backend/cpu/coarse_summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/half.h"

namespace folio {
namespace {

constexpr float kMost = 127.0f;
constexpr float kLeastUnit = 1e-6f;
constexpr float kLeastScale = 1e-30f;
constexpr float kMostOfCentre = 1.0f / 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A query's integer is kBase * high + low, of 8 bits each.
constexpr int kBase = 128;
constexpr float kMostOfQuery = kMost * kBase;
// Half of what MakeCoarseQuery says, and a little more: what fp32 rounds of a score of dim products
// is below (dim / 2 + 1) 2^-24 kMostScales sum|q'|, and what the matrix unit makes of a query below
// 2^-17 kMostScales sum|q'|: 0.07 of it together.
constexpr float kMarginFactor = 0.57f;

// Measured (docs/benchmarks/history.md): with fewer, what is scored twice costs what the copies
// save.
constexpr int64_t kTilesPerPick = 8;

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

void MakeChannels(const KvGeometry& g, const std::byte* tile, const CoarseChannels& to) {
  float all_sizes = 0;
  for (int d = 0; d < g.padded_dim; ++d) {
    float sum = 0;
    for (int chunk = 0; chunk < kTile; ++chunk) sum += NumberAt(g, tile, d, chunk);
    const float centre = sum / kTile;
    float squares = 0;
    for (int chunk = 0; chunk < kTile; ++chunk) {
      const float off = NumberAt(g, tile, d, chunk) - centre;
      squares += off * off;
    }
    to.centres[d] = centre;
    to.units[d] = std::max(std::sqrt(squares / kTile), std::fabs(centre) * kMostOfCentre);
    all_sizes += to.units[d];
  }
  const float least = std::max(all_sizes / static_cast<float>(g.padded_dim) / 2, kLeastUnit);
  for (int d = 0; d < g.padded_dim; ++d) to.units[d] = std::max(to.units[d], least);
}

// The scale of a tile; infinite where nothing can be said.
float ScaleOf(const KvGeometry& g, const std::byte* tile, const CoarseChannels& channels) {
  float scale = kLeastScale;
  for (int d = 0; d < g.padded_dim; ++d) {
    for (int chunk = 0; chunk < kTile; ++chunk) {
      const float number = NumberAt(g, tile, d, chunk);
      const float off = std::fabs(number - channels.centres[d]);
      const float least =
          std::max(off / kMost, std::fabs(number) / kMostScales) / channels.units[d];
      if (!std::isfinite(off) || !std::isfinite(least)) return kInfinity;
      scale = std::max(scale, least);
    }
  }
  return scale;
}

// Returns the scale.
float MakeTile(const KvGeometry& g, const std::byte* tile, const CoarseChannels& channels,
               std::byte* to) {
  auto* const integers = reinterpret_cast<int8_t*>(to);
  const float scale = ScaleOf(g, tile, channels);
  if (scale == kInfinity) {
    std::memset(to, 0, g.coarse_tile_bytes());
    return scale;
  }
  for (int d = 0; d < g.padded_dim; ++d) {
    const float unit = scale * channels.units[d];
    for (int chunk = 0; chunk < kTile; ++chunk) {
      const float off = NumberAt(g, tile, d, chunk) - channels.centres[d];
      integers[(d / 4 * kTile + chunk) * 4 + d % 4] = static_cast<int8_t>(std::lrint(off / unit));
    }
  }
  return scale;
}

}  // namespace

CoarseTiles::CoarseTiles(const KvGeometry& g, std::byte* frame, int layer, int head) {
  std::byte* const all = frame + g.coarse_offset(layer);
  tiles = all + head * g.coarse_tile_bytes();
  scales = reinterpret_cast<float*>(all + g.num_heads * g.coarse_tile_bytes()) + head;
}

CoarseChannels::CoarseChannels(const KvGeometry& g, std::byte* first_frame, int layer, int head) {
  static_assert(kTile >= 2 * sizeof(float));
  centres = reinterpret_cast<float*>(CoarseTiles(g, first_frame, layer, head).tiles);
  units = centres + g.padded_dim;
}

void MakeCoarseTiles(const KvGeometry& g, int num_tiles, std::byte* first_frame, std::byte* frame,
                     int layer, int head) {
  const CoarseChannels channels(g, first_frame, layer, head);
  const std::byte* const tiles = frame + g.summary_offset(layer, head);
  if (frame == first_frame) return MakeChannels(g, tiles, channels);
  const CoarseTiles to(g, frame, layer, head);
  for (int n = 0; n < num_tiles; ++n) {
    to.scales[n] = MakeTile(g, tiles + n * g.summary_tile_bytes(), channels,
                            to.tiles + n * g.coarse_tile_bytes());
  }
}

void MakeCoarseFrame(const KvGeometry& g, const SummaryLayout& layout, std::byte* first_frame,
                     std::byte* frame) {
  for (int layer = 0; layer < g.num_layers; ++layer) {
    for (int head = 0; head < g.num_heads; head += layout.tiles_per_frame) {
      MakeCoarseTiles(g, layout.tiles_per_frame, first_frame, frame, layer, head);
    }
  }
}

cpu::CoarseQuery MakeCoarseQuery(const KvGeometry& g, const float* q,
                                 const CoarseChannels& channels) {
  cpu::CoarseQuery query;
  float most = kLeastScale;
  float all = 0;
  for (int d = 0; d < g.padded_dim; ++d) {
    const float size = std::fabs(q[d] * channels.units[d]);
    most = std::max(most, size);
    all += size;
  }
  query.unit = most / kMostOfQuery;
  query.margin = kMarginFactor * (all + kMost * static_cast<float>(g.padded_dim) * query.unit);
  if (!std::isfinite(query.margin)) return query;
  const float inverse = kMostOfQuery / most;
  for (int d = 0; d < g.padded_dim; ++d) {
    const auto integer = static_cast<int>(std::lrint(q[d] * channels.units[d] * inverse));
    const int high = integer >> 7;
    query.high[d] = static_cast<int8_t>(high);
    query.low[d] = static_cast<int8_t>(integer - kBase * high);
    query.sum += integer;
  }
  return query;
}

int64_t NumCoarseTiles(const KvGeometry& g, const SummaryLayout& layout, int64_t num_chunks,
                       int64_t num_picks) {
  if (!g.coarse_summaries) return 0;
  const int64_t num_frames = num_chunks / layout.ChunksPerFrame();
  const int64_t num_tiles = num_frames * layout.tiles_per_frame;
  return num_frames < 2 || num_tiles < kTilesPerPick * num_picks ? 0 : num_tiles;
}

}  // namespace folio
