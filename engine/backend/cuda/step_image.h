#pragma once

#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/rope_cache.h"

namespace folio::cuda {

// One step as the kernels want it: everything they look up, in one piece of device memory. Built on
// the host once per step and used by all layers. Page tables travel as frame numbers, so that where
// a frame lies is decided on the device.
class StepImage {
 public:
  StepImage(CudaMemory* memory, const AttentionSetup& setup)
      : memory_(memory), setup_(setup), ropes_(memory, setup.geometry.page_tokens) {}

  absl::Status Build(const StepBatch& batch);

  const Step& step() const { return step_; }
  const ChunkTask* tasks() const { return device_tasks_; }
  int num_tasks() const { return static_cast<int>(tasks_.size()); }
  int max_chunk_tokens() const { return max_chunk_tokens_; }
  // Candidates of any row for a choice of chunks and of tokens; 0: nobody chooses.
  int64_t max_chunk_candidates() const { return max_chunk_candidates_; }
  int64_t max_token_candidates() const { return max_token_candidates_; }
  int max_chunk_picks() const { return max_chunk_picks_; }
  int max_token_picks() const { return max_token_picks_; }
  // Pages that a row of the step looks at, about.
  int64_t max_visits() const { return max_visits_; }

 private:
  absl::Status AddSlice(const SequenceSlice& from);
  absl::Status SetRopes(const SequenceSlice& from, Slice* to);
  const Rotary& RotaryOf(const SequenceSlice& from);
  void SetSelection(const AttentionPlan& plan, Slice* to);
  void SetStages(const SequenceSlice& from, const DeviceRope& rope, Slice* to);
  void AddTasks(const SequenceSlice& from);
  absl::Status Upload();

  CudaMemory* const memory_;
  const AttentionSetup& setup_;
  RopeCache ropes_;
  Rotary dynamic_;

  std::vector<Slice> slices_;
  std::vector<int> slice_of_row_;
  std::vector<float> entropy_of_row_;
  std::vector<int> frames_;  // page tables of all slices
  struct FrameOffsets {
    size_t pages;
    size_t sinks;
    size_t summaries;
  };
  std::vector<FrameOffsets> offsets_;  // of each slice in frames_
  std::vector<ChunkTask> tasks_;
  std::vector<std::byte> host_;
  Buffer device_;

  Step step_ = {};
  const ChunkTask* device_tasks_ = nullptr;
  int max_chunk_tokens_ = 0;
  int64_t max_chunk_candidates_ = 0;
  int64_t max_token_candidates_ = 0;
  int max_chunk_picks_ = 0;
  int max_token_picks_ = 0;
  int64_t max_visits_ = 0;
};

}  // namespace folio::cuda
