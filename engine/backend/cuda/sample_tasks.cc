#include "engine/backend/cuda/sample_tasks.h"

#include <algorithm>

#include "engine/sampling/sampler.h"

namespace folio::cuda {

void SampleTasks::Set(const std::vector<LogitsTask>& tasks) {
  tasks_.clear();
  words_.clear();
  edits_.clear();
  offsets_.clear();
  for (const LogitsTask& task : tasks) {
    SampleTask& to = tasks_.emplace_back();
    to = {};
    offsets_.emplace_back();
    to.num_top = -1;
    if (task.row < 0) continue;  // padding
    to.row = task.row;
    if (task.sampling == nullptr) {
      to.kind = SampleTask::kScore;
      to.token = task.scored_token;
      to.num_top = std::clamp(task.num_top_logprobs, 0, kMaxTopLogprobs);
      continue;
    }
    to.kind = SampleTask::kDraw;
    to.num_top = std::min(task.num_top_logprobs, kMaxTopLogprobs);
    const SamplingParams& params = *task.sampling;
    to.temperature = params.temperature;
    to.top_k = params.top_k;
    to.top_p = params.top_p;
    to.min_p = params.min_p;
    to.penalty = params.repetition_penalty;
    to.uniform = UniformAt(params.seed, task.index);
    if (task.changes != nullptr) {
      to.num_edits = static_cast<int>(task.changes->size());
      for (const LogitChange& change : *task.changes) {
        edits_.push_back({change.token, change.before, change.after});
      }
    }
    if (task.seen != nullptr) offsets_.back().seen = AddWords(task.seen->words());
    if (task.allowed != nullptr) offsets_.back().allowed = AddWords(*task.allowed);
  }
}

int64_t SampleTasks::AddWords(const std::vector<uint32_t>& words) {
  const auto offset = static_cast<int64_t>(words_.size());
  words_.insert(words_.end(), words.begin(), words.end());
  return offset;
}

void SampleTasks::SetBase(const uint32_t* words, const LogitEdit* edits) {
  const auto at = [words](int64_t offset) { return offset < 0 ? nullptr : words + offset; };
  for (size_t n = 0; n < tasks_.size(); ++n) {
    tasks_[n].seen = at(offsets_[n].seen);
    tasks_[n].allowed = at(offsets_[n].allowed);
    tasks_[n].edits = edits;
    edits += tasks_[n].num_edits;
  }
}

}  // namespace folio::cuda
