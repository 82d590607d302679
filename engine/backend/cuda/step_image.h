#pragma once

#include <compare>
#include <limits>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/sample_tasks.h"
#include "engine/backend/cuda/slice_ropes.h"
#include "engine/backend/cuda/workspace.h"

namespace folio::cuda {

// What decides which kernels a step launches, and with how many blocks: two steps of one shape
// launch the same.
struct StepShape {
  int num_rows = 0;
  int num_logits = 0;
  int num_plain_rows = 0;
  int num_tensor_rows = 0;
  int num_tiles = 0;
  int num_choosing_rows = 0;
  int num_reading_rows = 0;
  int num_lists = 0;
  // Chunks that the step completes; tokens of the largest chunk, 0: nobody chooses chunks.
  int num_chunk_tasks = 0;
  int max_chunk_tokens = 0;
  // Candidates of any row for a choice of chunks and of tokens, and how many are taken.
  int64_t chunk_candidates = 0;
  int64_t token_candidates = 0;
  int chunk_picks = 0;
  int token_picks = 0;
  // Pages that a row which attends by itself looks at, about.
  int64_t visits = 0;

  auto operator<=>(const StepShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// One step as the kernels want it: everything they look up, in one piece of device memory. Built on
// the host once per step and used by all layers. Page tables travel as frame numbers, so that where
// a frame lies is decided on the device.
class StepImage {
 public:
  // What it takes at once: room for far more rows and frames than a step usually has.
  static constexpr int64_t kUsualBytes = int64_t{4} << 20;

  StepImage(CudaMemory* memory, const AttentionSetup& setup, const Geometry& geometry);

  // Whether every row is a token of an answer, so that later steps will have the same shape. Such a
  // step is padded: rows and logits to a bucket, what grows with the text to a power of two.
  static bool Repeats(const StepBatch& batch);
  // Rows that a repeated step of `num_rows` runs with.
  static int BucketOf(int num_rows, int max_rows);

  // `batch` is padded already if `repeats`. `evidence` [i]: where the choices of slice i go, or
  // null.
  absl::Status Build(const StepBatch& batch, bool repeats,
                     const std::vector<EvidencePick*>& evidence);

  // Counts a slice into the shape of a step that has it. What depends on where its rows go is an
  // upper bound: Build counts that itself.
  void Measure(const SequenceSlice& slice, StepShape* shape) const;
  // What the slices of a step take, this one included.
  struct Sizes {
    int64_t num_rows = 0;
    int64_t num_slices = 0;
    int64_t num_frames = 0;
    int64_t num_chunk_tasks = 0;
    int64_t num_logit_changes = 0;
  };
  // Takes what Build needs for this slice, in a step of so much. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(const SequenceSlice& slice, const Sizes& sizes);
  static int64_t NumFrames(const SequenceSlice& slice) {
    return static_cast<int64_t>(slice.pages.size() + slice.sinks.size() + slice.summaries.size() +
                                slice.pending_queries.size());
  }

  const Step& step() const { return step_; }
  const StepShape& shape() const { return shape_; }
  const ChunkTask* chunk_tasks() const { return chunk_tasks_; }

 private:
  absl::Status AddSlice(const SequenceSlice& from, EvidencePick* evidence);
  void SetRopes(const SliceRopes::Ropes& ropes, Slice* to) const;
  static absl::Status SetStages(const AttentionPlan& plan, const DeviceRope& rope, Slice* to);
  void AddChunkTasks(const SequenceSlice& from);
  void AddRows(const SequenceSlice& from, Slice* to);
  bool GoesIntoTiles(const SequenceSlice& from) const;
  void AddTiles(const SequenceSlice& from, int end);
  void AddReader(int row);
  void Pad();
  absl::Status Upload();
  int64_t MaxBytes(const Sizes& sizes) const;

  CudaMemory* const memory_;
  const AttentionSetup& setup_;
  const Geometry& geometry_;
  const bool tensor_cores_;
  SliceRopes ropes_;

  // Where the lists of a slice begin in frames_.
  struct FrameOffsets {
    size_t pages;
    size_t sinks;
    size_t summaries;
    size_t pending;  // kNoFrames: none
  };
  static constexpr size_t kNoFrames = std::numeric_limits<size_t>::max();
  std::vector<Slice> slices_;
  std::vector<FrameOffsets> offsets_;
  std::vector<int> frames_;
  std::vector<int> tokens_;
  std::vector<int> slice_of_row_;
  std::vector<float> entropy_of_row_;
  std::vector<int> plain_rows_;
  std::vector<int> tensor_rows_;
  std::vector<int> choosing_rows_;
  std::vector<int> choosing_place_;
  std::vector<int> reading_rows_;
  std::vector<Tile> tiles_;
  std::vector<ChunkTask> tasks_;
  SampleTasks samples_;

  // The copy of the last step may still be on its way.
  Staging stagings_[2];
  int turn_ = 0;
  Workspace device_;
  Step step_ = {};
  StepShape shape_;
  const ChunkTask* chunk_tasks_ = nullptr;
};

}  // namespace folio::cuda
