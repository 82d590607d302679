#pragma once

#include "engine/backend/cuda/step_image.h"

namespace folio::cuda {

// Launches everything between a layer's QKV product and its output product, and owns the memory
// that this needs beside the cache.
class CudaAttention {
 public:
  // Takes its memory for steps of setup.max_step_rows at once; what an unusual request needs beyond
  // that is taken when it comes, by Reserve.
  CudaAttention(CudaMemory* memory, const AttentionSetup& setup, const Geometry& geometry);

  // Takes what the choices of a step of this shape (StepImage::Measure) need. Errors:
  // RESOURCE_EXHAUSTED.
  absl::Status Reserve(const StepShape& shape);

  // Of the step that follows. Its choices have room.
  void BeginStep(const StepImage& image);

  void StoreKv(int layer, const float* qkv);
  void SummarizeChunks(int layer, const float* qkv);
  void Attend(int layer, const float* qkv, float* out);

  // What it takes for them.
  static int64_t WorkspaceBytes(const KvGeometry& geometry, int max_step_rows,
                                const DeviceInfo& device);

 private:
  // What heads choose, on the device.
  struct PicksSpace {
    explicit PicksSpace(CudaMemory* memory)
        : chosen(memory), ranked(memory), scores(memory), counts(memory) {}
    absl::Status Reserve(int64_t num_rows, int num_heads, int capacity);
    Picks Get(int64_t num_rows, int num_heads, int capacity);

    Workspace chosen;
    Workspace ranked;
    Workspace scores;
    Workspace counts;
  };

  // Chunks whose summaries one launch makes.
  int SummaryBatch(const StepShape& shape) const;
  void ChooseChunks(int layer, const float* qkv);
  void ChooseTokens(int layer, const float* qkv);
  // Calls choose for as many rows at a time as their scores have room for.
  template <typename F>
  void InBatches(int64_t candidates, F choose);
  void AttendRows(int layer, const float* qkv, float* out);
  void AttendTiles(int layer, const float* qkv, float* out);
  int NumSplits(int num_rows) const;
  int64_t StateFloats(int64_t num_rows, int num_heads, int capacity) const;
  static int64_t ListInts(const StepShape& shape, int num_heads, int capacity);
  ChunkLists ListsFor(const StepShape& shape, int num_heads, int capacity);

  CudaMemory* const memory_;
  const Geometry geometry_;
  const int max_step_rows_;
  Workspace scores_;
  Workspace partial_;
  Workspace states_;
  Workspace lists_;
  PicksSpace chunk_space_;
  PicksSpace token_space_;
  // Of the step; chunks chosen in layer 0 may serve later layers.
  const StepImage* image_ = nullptr;
  Picks picks_ = {};
  Picks tokens_ = {};
};

}  // namespace folio::cuda
