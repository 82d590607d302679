#include "engine/backend/cuda/step_graphs.h"

#include <algorithm>

namespace folio::cuda {
namespace {

// Sizes of a batch, lengths of a text and mixes of strategies that are kept.
constexpr size_t kMaxGraphs = 128;

}  // namespace

void StepGraphs::Run(const StepShape& shape, absl::FunctionRef<void()> launch) {
  if (!records_) return launch();
  if (num_moves_ != memory_->num_moves()) Clear();
  const auto [found, is_new] = entries_.try_emplace(shape);
  Entry& entry = found->second;
  entry.last_use = ++clock_;
  if (is_new) {
    launch();
    if (entries_.size() > kMaxGraphs) DropOldest();
    return;
  }
  if (entry.graph != nullptr) {
    ++num_replays_;
  } else if (!Record(&entry, launch)) {
    records_ = false;
    return launch();
  }
  memory_->NoteIn("a recorded step", LaunchGraph(memory_->stream(), entry.graph));
}

bool StepGraphs::Record(Entry* entry, absl::FunctionRef<void()> launch) {
  if (!memory_->BeginRecording()) return false;
  launch();
  entry->graph = memory_->EndRecording();
  return entry->graph != nullptr;
}

void StepGraphs::DropOldest() {
  const auto oldest = std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  memory_->Finish();  // it may still run
  FreeGraph(oldest->second.graph);
  entries_.erase(oldest);
}

void StepGraphs::Clear() {
  if (!entries_.empty()) memory_->Finish();
  for (const auto& [shape, entry] : entries_) FreeGraph(entry.graph);
  entries_.clear();
  num_moves_ = memory_->num_moves();
}

}  // namespace folio::cuda
