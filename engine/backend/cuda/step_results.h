#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/workspace.h"
#include "engine/types/attention_plan.h"

namespace folio::cuda {

// What a step gives back to the host: samples, and the chunks that heads chose where somebody asks.
// They are on their way as soon as the step has been launched, so that the next one may be launched
// before anybody waits; at most two steps are under way.
class StepResults {
 public:
  StepResults(CudaMemory* memory, const AttentionSetup& setup, const Geometry& geometry);
  ~StepResults();

  // Picks of the evidence that a slice is asked for.
  int64_t NumPicks(const SequenceSlice& slice) const;
  // Takes what the evidence of a step needs. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(int64_t num_picks);

  // A new step: makes room for num_logits samples (padding included) and for its evidence.
  void Begin(const StepBatch& batch, int num_logits);

  // Of the step, on the device; evidence [slices], null where nobody asks. The samples stay there
  // until those of the next step are drawn.
  SampleResult* samples() const { return sample_base_; }
  TopLogprobs* tops() const { return top_base_; }
  const std::vector<EvidencePick*>& evidence() const { return evidence_bases_; }

  // The step has been launched.
  void SendBack();
  // Waits for the oldest step that was sent back, and hands out what it gave.
  void Receive(std::vector<Sample>* samples);

 private:
  // A step on its way. What it was asked for may be gone when it arrives.
  struct Step {
    std::vector<int> num_tops;  // per sample
    std::vector<std::pair<std::shared_ptr<ChunkPicks>, int64_t>> picks;
    int64_t num_picks = 0;
    int slot = 0;
  };
  struct Layout {
    explicit Layout(const Step& step);
    int64_t samples = 0;  // offset; picks come first
    int64_t tops = 0;
    int64_t end = 0;
    bool with_tops = false;
  };

  CudaMemory* const memory_;
  const Geometry& geometry_;
  const int max_logit_rows_;
  Workspace samples_;
  Workspace tops_;
  Workspace evidence_;
  Staging stagings_[2];
  Event events_[2] = {};
  SampleResult* sample_base_ = nullptr;
  TopLogprobs* top_base_ = nullptr;
  EvidencePick* evidence_base_ = nullptr;
  std::vector<EvidencePick*> evidence_bases_;
  Step begun_;
  std::deque<Step> sent_;
};

}  // namespace folio::cuda
