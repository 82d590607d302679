#include "engine/backend/cpu/rope_tables.h"

namespace folio {
namespace {

constexpr size_t kMaxTables = 64;

}  // namespace

RopeTables::RopeTables(const Rotary& rotary, int page_tokens)
    : positions(rotary.theta, 1),
      pages(rotary.theta, page_tokens),
      logit_factor(rotary.logit_factor),
      theta_(rotary.theta) {
  positions.Grow(page_tokens);
  pages.Grow(1);
  FillLanes(page_tokens);
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

void RopeTables::FillLanes(int page_tokens) {
  const size_t half = theta_.size();
  lane_cos_.assign((page_tokens + kTile) * half, 1.0f);
  lane_sin_.assign((page_tokens + kTile) * half, 0.0f);
  for (int token = 0; token < page_tokens; ++token) {
    const size_t tile = token / kTile;
    for (size_t m = 0; m < half; ++m) {
      const size_t at = (tile * half + m) * kTile + token % kTile;
      lane_cos_[at] = positions.Cos(token)[m];
      lane_sin_[at] = positions.Sin(token)[m];
    }
  }
}

void RopeTables::RotatePage(const KvGeometry& g, const cpu::Kernels& kernels, bool rotate,
                            const std::byte* from, std::byte* to) const {
  const int half = g.head_dim / 2;
  const int num_tiles = g.page_tokens / kTile;
  const int64_t line_bytes = int64_t{kTile} * DTypeBytes(g.dtype);
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int64_t lanes = int64_t{rotate ? tile : num_tiles} * half * kTile;
    kernels.rotate_tile(g.dtype, from + tile * g.padded_key_dim() * line_bytes,
                        g.paired_keys ? 0 : half, &lane_cos_[lanes], &lane_sin_[lanes], half,
                        to + tile * g.padded_dim * line_bytes);
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
