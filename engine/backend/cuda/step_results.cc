#include "engine/backend/cuda/step_results.h"

#include <algorithm>
#include <cstring>

#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

static_assert(sizeof(EvidencePick) == sizeof(ChunkPicks::Pick));

constexpr int64_t kSampleBytes = sizeof(SampleResult);
constexpr int64_t kTopBytes = sizeof(TopLogprobs);
constexpr int64_t kPickBytes = sizeof(EvidencePick);

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

StepResults::StepResults(CudaMemory* memory, const AttentionSetup& setup, const Geometry& geometry)
    : memory_(memory),
      geometry_(geometry),
      max_logit_rows_(setup.max_logit_rows),
      samples_(memory),
      tops_(memory),
      evidence_(memory),
      stagings_{Staging(memory), Staging(memory)} {
  samples_.Get<SampleResult>(setup.max_logit_rows);
  tops_.Get<TopLogprobs>(setup.max_logit_rows);
  for (Event& event : events_) memory_->Note(MakeEvent(&event));
  for (Staging& staging : stagings_) staging.Get(max_logit_rows_ * (kSampleBytes + kTopBytes) + 1);
}

absl::Status StepResults::Reserve(int64_t num_picks) {
  FOLIO_RETURN_IF_ERROR(evidence_.Reserve<EvidencePick>(num_picks));
  // Copies to the other one may be under way.
  return stagings_[1 - begun_.slot].Reserve(num_picks * kPickBytes +
                                            max_logit_rows_ * (kSampleBytes + kTopBytes) + 1);
}

StepResults::~StepResults() {
  for (Event event : events_) FreeEvent(event);
}

StepResults::Layout::Layout(const Step& step) {
  const auto num_samples = static_cast<int64_t>(step.num_tops.size());
  with_tops = std::any_of(step.num_tops.begin(), step.num_tops.end(), [](int n) { return n > 0; });
  samples = step.num_picks * kPickBytes;
  tops = samples + num_samples * kSampleBytes;
  end = tops + (with_tops ? num_samples * kTopBytes : 0);
}

int64_t StepResults::NumPicks(const SequenceSlice& slice) const {
  const ChunkSelection& selection = slice.plan->selection;
  if (slice.picks == nullptr || !selection.enabled()) return 0;
  return int64_t{geometry_.num_layers} * geometry_.num_heads * selection.num_free_picks;
}

void StepResults::Begin(const StepBatch& batch, int num_logits) {
  const int slot = 1 - begun_.slot;
  begun_ = {};
  begun_.slot = slot;
  for (const LogitsTask& task : batch.logits) {
    begun_.num_tops.push_back(std::clamp(task.num_top_logprobs, 0, kMaxTopLogprobs));
  }
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t count = NumPicks(slice);
    if (count > 0) begun_.picks.emplace_back(slice.picks, count);
    begun_.num_picks += count;
  }
  sample_base_ = samples_.Get<SampleResult>(num_logits);
  top_base_ = tops_.Get<TopLogprobs>(num_logits);
  evidence_base_ = evidence_.Get<EvidencePick>(begun_.num_picks);
  EvidencePick* next = evidence_base_;
  evidence_bases_.clear();
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t count = NumPicks(slice);
    evidence_bases_.push_back(count == 0 ? nullptr : next);
    next += count;
  }
}

void StepResults::SendBack() {
  const Layout layout(begun_);
  std::byte* host = stagings_[begun_.slot].Get(layout.end + 1);
  if (host == nullptr) return;
  if (begun_.num_picks > 0) memory_->ReadAsync(host, evidence_base_, layout.samples);
  if (layout.tops > layout.samples) {
    memory_->ReadAsync(host + layout.samples, sample_base_, layout.tops - layout.samples);
  }
  if (layout.with_tops) {
    memory_->ReadAsync(host + layout.tops, top_base_, layout.end - layout.tops);
  }
  memory_->Note(Record(memory_->stream(), events_[begun_.slot]));
  sent_.push_back(begun_);
}

void StepResults::Receive(std::vector<Sample>* samples) {
  samples->clear();
  if (sent_.empty()) return;
  const Step step = std::move(sent_.front());
  sent_.pop_front();
  memory_->NoteIn("FinishStep", WaitFor(events_[step.slot]));
  memory_->NoteIn("FinishStep", LaunchError());
  if (!memory_->status().ok()) return;
  const Layout layout(step);
  const std::byte* host = stagings_[step.slot].Get(layout.end + 1);
  for (size_t n = 0; n < step.num_tops.size(); ++n) {
    const auto at = static_cast<int64_t>(n);
    const auto result = Load<SampleResult>(host + layout.samples + at * kSampleBytes);
    Sample& sample =
        samples->emplace_back(Sample{result.token, result.logprob, {}, result.finite != 0});
    if (step.num_tops[n] == 0) continue;
    const auto tops = Load<TopLogprobs>(host + layout.tops + at * kTopBytes);
    for (int top = 0; top < step.num_tops[n] && tops.tokens[top] >= 0; ++top) {
      sample.top_logprobs.push_back({tops.tokens[top], tops.logprobs[top]});
    }
  }
  for (const auto& [picks, count] : step.picks) {
    picks->picks.resize(count);
    std::memcpy(picks->picks.data(), host, count * kPickBytes);
    host += count * kPickBytes;
  }
}

}  // namespace folio::cuda
