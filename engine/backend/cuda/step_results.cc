#include "engine/backend/cuda/step_results.h"

#include <algorithm>
#include <cstring>

namespace folio::cuda {
namespace {

static_assert(sizeof(EvidencePick) == sizeof(ChunkPicks::Pick));
static_assert(kMaxTops == kMaxTopLogprobs);

bool WantsTops(const LogitsTask& task) {
  return task.sampling != nullptr && task.num_top_logprobs > 0;
}

Sample SampleOf(const LogitsTask& task, const SampleResult& result, const TopLogprobs& tops) {
  Sample sample = {result.token, result.logprob, {}};
  const int num_tops = WantsTops(task) ? std::min(task.num_top_logprobs, kMaxTops) : 0;
  for (int n = 0; n < num_tops && tops.tokens[n] >= 0; ++n) {
    sample.top_logprobs.push_back({tops.tokens[n], tops.logprobs[n]});
  }
  return sample;
}

}  // namespace

int64_t StepResults::NumPicks(const SequenceSlice& slice) const {
  const ChunkSelection& selection = slice.plan->selection;
  if (slice.picks == nullptr || !selection.enabled()) return 0;
  return int64_t{geometry_.num_layers} * geometry_.num_heads * selection.num_free_picks;
}

void StepResults::Begin(const StepBatch& batch, int num_logits) {
  sample_base_ = samples_.Get<SampleResult>(num_logits);
  top_base_ = tops_.Get<TopLogprobs>(num_logits);
  num_picks_ = 0;
  for (const SequenceSlice& slice : batch.slices) num_picks_ += NumPicks(slice);
  EvidencePick* next = evidence_.Get<EvidencePick>(num_picks_);
  evidence_bases_.clear();
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t count = NumPicks(slice);
    evidence_bases_.push_back(count == 0 ? nullptr : next);
    next += count;
  }
}

void StepResults::Fetch(const StepBatch& batch, std::vector<Sample>* samples) {
  samples->clear();
  const auto num_logits = static_cast<int64_t>(batch.logits.size());
  const bool with_tops = std::any_of(batch.logits.begin(), batch.logits.end(), WantsTops);
  const int64_t sample_bytes = num_logits * static_cast<int64_t>(sizeof(SampleResult));
  const int64_t top_bytes = with_tops ? num_logits * static_cast<int64_t>(sizeof(TopLogprobs)) : 0;
  const int64_t pick_bytes = num_picks_ * static_cast<int64_t>(sizeof(EvidencePick));
  std::byte* host = staging_.Get(sample_bytes + top_bytes + pick_bytes + 1);
  if (host == nullptr || !memory_->status().ok()) return;
  if (num_logits > 0) memory_->ReadAsync(host + pick_bytes, sample_base_, sample_bytes);
  if (with_tops) memory_->ReadAsync(host + pick_bytes + sample_bytes, top_base_, top_bytes);
  if (num_picks_ > 0) memory_->ReadAsync(host, evidence_.Get<EvidencePick>(num_picks_), pick_bytes);
  memory_->Finish();
  if (!memory_->status().ok()) return;
  for (int64_t n = 0; n < num_logits; ++n) {
    SampleResult result;
    std::memcpy(&result, host + pick_bytes + n * static_cast<int64_t>(sizeof(result)),
                sizeof(result));
    TopLogprobs tops = {};
    if (with_tops) {
      std::memcpy(&tops, host + pick_bytes + sample_bytes + n * static_cast<int64_t>(sizeof(tops)),
                  sizeof(tops));
    }
    samples->push_back(SampleOf(batch.logits[n], result, tops));
  }
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t count = NumPicks(slice);
    if (count == 0) continue;
    slice.picks->picks.resize(count);
    std::memcpy(slice.picks->picks.data(), host, count * sizeof(EvidencePick));
    host += count * static_cast<int64_t>(sizeof(EvidencePick));
  }
}

}  // namespace folio::cuda
