#include "engine/backend/cuda/step_graphs.h"

#include <algorithm>

namespace folio::cuda {
namespace {

// Sizes of a batch, lengths of a text and mixes of strategies that are kept.
constexpr size_t kMaxGraphs = 128;

}  // namespace

void StepGraphs::Run(const StepShape& shape, absl::FunctionRef<void()> launch) {
  if (num_moves_ != memory_->num_moves()) Clear();
  const auto [found, is_new] = entries_.try_emplace(shape);
  Entry& entry = found->second;
  entry.last_use = ++clock_;
  if (is_new) {
    launch();
    // A workspace may have grown now.
    if (entries_.size() > kMaxGraphs) DropOldest();
    return;
  }
  if (entry.graph == nullptr) {
    Record(&entry, launch);
  } else {
    ++num_replays_;
  }
  if (entry.graph != nullptr) memory_->Note(LaunchGraph(memory_->stream(), entry.graph));
}

void StepGraphs::Record(Entry* entry, absl::FunctionRef<void()> launch) {
  memory_->Note(BeginRecording(memory_->stream()));
  launch();
  memory_->Note(EndRecording(memory_->stream(), &entry->graph));
}

void StepGraphs::DropOldest() {
  const auto oldest = std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  FreeGraph(oldest->second.graph);
  entries_.erase(oldest);
}

void StepGraphs::Clear() {
  for (const auto& [shape, entry] : entries_) FreeGraph(entry.graph);
  entries_.clear();
  num_moves_ = memory_->num_moves();
}

}  // namespace folio::cuda
