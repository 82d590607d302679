#include "engine/backend/cuda/rope_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/attention/rope.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

constexpr size_t kMaxTables = 64;

}  // namespace

absl::Status DeviceRope::GrowTable(int64_t count, int64_t stride, BufferOf<float>* table) {
  const auto half = static_cast<int64_t>(rotary_.theta.size());
  if (table->size() >= count * 2 * half) return absl::OkStatus();
  // Twice as large each time: few copies.
  const int64_t grown = std::max(count, table->size() / half);
  std::vector<float> values(grown * 2 * half);
  for (int64_t n = 0; n < grown; ++n) {
    FillRotation(rotary_.theta, n * stride, &values[n * 2 * half], &values[(n * 2 + 1) * half]);
  }
  FOLIO_ASSIGN_OR_RETURN(BufferOf<float> larger, BufferOf<float>::CopyOf(memory_, values));
  outgrown_.push_back(std::exchange(*table, std::move(larger)));
  return absl::OkStatus();
}

absl::Status DeviceRope::Grow(int64_t num_positions, int64_t num_pages) {
  FOLIO_RETURN_IF_ERROR(GrowTable(num_positions, 1, &positions_));
  return GrowTable(num_pages, page_tokens_, &pages_);
}

absl::Status DeviceRope::AddFixed(int64_t position) {
  BufferOf<float>& table = fixed_[position];
  if (!table.empty()) return absl::OkStatus();
  const size_t half = rotary_.theta.size();
  std::vector<float> values(2 * half);
  FillRotation(rotary_.theta, position, values.data(), values.data() + half);
  FOLIO_ASSIGN_OR_RETURN(table, BufferOf<float>::CopyOf(memory_, values));
  return absl::OkStatus();
}

DeviceRope* RopeCache::Get(const Rotary& rotary) {
  Entry& entry = entries_[rotary];
  if (entry.rope == nullptr) {
    entry.rope = std::make_unique<DeviceRope>(memory_, rotary, page_tokens_);
  }
  entry.last_step = step_;
  return entry.rope.get();
}

void RopeCache::BeginStep() {
  ++step_;
  for (auto& [rotary, entry] : entries_) entry.rope->DropOutgrown();
  if (entries_.size() <= kMaxTables) return;
  std::erase_if(entries_, [this](const auto& item) { return item.second.last_step + 1 < step_; });
}

}  // namespace folio::cuda
