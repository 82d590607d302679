#include "engine/backend/cpu/rope_tables.h"

#include <cstring>

#include "engine/base/half.h"

namespace folio {
namespace {

constexpr size_t kMaxTables = 64;

float Element(const std::byte* line, DType dtype, int lane, int pair_half) {
  if (dtype == DType::kBf16) {
    return Bf16ToFloat(reinterpret_cast<const uint16_t*>(line)[2 * lane + pair_half]);
  }
  return reinterpret_cast<const float*>(line)[lane];
}

void SetElement(std::byte* line, DType dtype, int lane, int pair_half, float value) {
  if (dtype == DType::kBf16) {
    reinterpret_cast<uint16_t*>(line)[2 * lane + pair_half] = FloatToBf16(value);
  } else {
    reinterpret_cast<float*>(line)[lane] = value;
  }
}

// Offset of the 16 values of dimension `dim` in a tile of keys.
int64_t LineOffset(DType dtype, int dim) {
  return dtype == DType::kBf16 ? int64_t{dim / 2} * 64 : int64_t{dim} * 64;
}

}  // namespace

RopeTables::RopeTables(const Rotary& rotary, int page_tokens)
    : positions(rotary.theta, 1),
      pages(rotary.theta, page_tokens),
      logit_factor(rotary.logit_factor),
      theta_(rotary.theta) {
  positions.Grow(page_tokens);
  pages.Grow(1);
}

void RopeTables::AddFixed(int64_t position) {
  std::vector<float>& table = fixed_[position];
  if (!table.empty()) return;
  table.resize(2 * theta_.size());
  FillRotation(theta_, position, table.data(), table.data() + theta_.size());
}

RopeTables::Rotation RopeTables::Fixed(int64_t position) const {
  const std::span<const float> table = fixed_.at(position);
  return {table.first(theta_.size()), table.last(theta_.size())};
}

void RopeTables::RotatePage(const KvGeometry& g, const std::byte* from, std::byte* to) const {
  const int half = g.head_dim / 2;
  const int64_t tile_bytes = int64_t{kTile} * g.padded_dim * DTypeBytes(g.dtype);
  std::memcpy(to, from, g.half_slice_bytes());
  for (int token = 0; token < g.page_tokens; ++token) {
    const float* cos = positions.Cos(token);
    const float* sin = positions.Sin(token);
    const std::byte* in = from + token / kTile * tile_bytes;
    std::byte* out = to + token / kTile * tile_bytes;
    const int lane = token % kTile;
    for (int m = 0; m < half; ++m) {
      const int64_t low = LineOffset(g.dtype, m);
      const int64_t high = LineOffset(g.dtype, m + half);
      const float x = Element(in + low, g.dtype, lane, m % 2);
      const float y = Element(in + high, g.dtype, lane, (m + half) % 2);
      SetElement(out + low, g.dtype, lane, m % 2, x * cos[m] - y * sin[m]);
      SetElement(out + high, g.dtype, lane, (m + half) % 2, y * cos[m] + x * sin[m]);
    }
  }
}

RopeTables* RopeTableCache::Get(const Rotary& rotary) {
  Entry& entry = entries_[rotary];
  if (entry.tables == nullptr) entry.tables = std::make_unique<RopeTables>(rotary, page_tokens_);
  entry.last_step = step_;
  return entry.tables.get();
}

void RopeTableCache::BeginStep() {
  ++step_;
  if (entries_.size() <= kMaxTables) return;
  std::erase_if(entries_, [this](const auto& item) { return item.second.last_step + 1 < step_; });
}

}  // namespace folio
