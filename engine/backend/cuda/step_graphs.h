#pragma once

#include <map>

#include "absl/functional/function_ref.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/step_image.h"

namespace folio::cuda {

// Steps that were recorded, by shape. A step of a shape that was seen before is one launch. The
// first step of a shape runs as it is, so that what a kernel needs at its first launch is there
// when the second one is recorded.
class StepGraphs {
 public:
  explicit StepGraphs(CudaMemory* memory) : memory_(memory), records_(memory->switches().graphs) {}
  ~StepGraphs() { Clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Does what `launch` launches.
  void Run(const StepShape& shape, absl::FunctionRef<void()> launch);

  int64_t num_replays() const { return num_replays_; }
  // False once a step could not be recorded, or where none shall be: steps run as they are.
  bool records() const { return records_; }

 private:
  struct Entry {
    Graph graph = nullptr;
    int64_t last_use = 0;
  };
  bool Record(Entry* entry, absl::FunctionRef<void()> launch);
  void DropOldest();
  void Clear();

  CudaMemory* const memory_;
  std::map<StepShape, Entry> entries_;
  int64_t num_moves_ = 0;  // of the memory, when the graphs were recorded
  int64_t clock_ = 0;
  int64_t num_replays_ = 0;
  bool records_;
};

}  // namespace folio::cuda
