#pragma once

#include <vector>

#include "engine/backend/cuda/workspace.h"
#include "engine/types/attention_plan.h"

namespace folio::cuda {

// What a step gives back to the host, in one wait: samples, and the chunks that heads chose where
// somebody asks.
class StepResults {
 public:
  StepResults(CudaMemory* memory, const Geometry& geometry)
      : memory_(memory),
        geometry_(geometry),
        samples_(memory),
        tops_(memory),
        evidence_(memory),
        staging_(memory) {}

  // Makes room for num_logits samples (padding included) and for the evidence of the batch.
  void Begin(const StepBatch& batch, int num_logits);

  // Of the step, on the device; evidence [slices], null where nobody asks.
  SampleResult* samples() const { return sample_base_; }
  TopLogprobs* tops() const { return top_base_; }
  const std::vector<EvidencePick*>& evidence() const { return evidence_bases_; }

  // Waits for the step and hands out what it gave.
  void Fetch(const StepBatch& batch, std::vector<Sample>* samples);

 private:
  int64_t NumPicks(const SequenceSlice& slice) const;

  CudaMemory* const memory_;
  const Geometry& geometry_;
  Workspace samples_;
  Workspace tops_;
  Workspace evidence_;
  Staging staging_;
  SampleResult* sample_base_ = nullptr;
  TopLogprobs* top_base_ = nullptr;
  std::vector<EvidencePick*> evidence_bases_;
  int64_t num_picks_ = 0;
};

}  // namespace folio::cuda
