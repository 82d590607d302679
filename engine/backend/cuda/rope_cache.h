#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/device_types.h"
#include "engine/types/rotary.h"

namespace folio::cuda {

// cos and sin of one rotary table on the device, grown on demand. Angles are formed in double on
// the host, as the CPU backend forms them.
class DeviceRope {
 public:
  DeviceRope(CudaMemory* memory, const Rotary& rotary, int page_tokens)
      : memory_(memory), rotary_(rotary), page_tokens_(page_tokens) {}

  // Makes positions 0 .. num_positions - 1 and pages 0 .. num_pages - 1 available.
  absl::Status Grow(int64_t num_positions, int64_t num_pages);
  absl::Status AddFixed(int64_t position);

  // Frees tables that have grown since: slices of the last step may have been told of them.
  void DropOutgrown() { outgrown_.clear(); }

  RopeTable table() const { return {{positions_.data()}, {pages_.data()}}; }
  const float* fixed(int64_t position) const { return fixed_.at(position).data(); }
  float logit_factor() const { return rotary_.logit_factor; }

 private:
  absl::Status GrowTable(int64_t count, int64_t stride, BufferOf<float>* table);

  CudaMemory* const memory_;
  const Rotary rotary_;
  const int page_tokens_;
  BufferOf<float> positions_;
  BufferOf<float> pages_;
  std::map<int64_t, BufferOf<float>> fixed_;
  std::vector<BufferOf<float>> outgrown_;
};

// The tables in use, found by content.
class RopeCache {
 public:
  RopeCache(CudaMemory* memory, int page_tokens) : memory_(memory), page_tokens_(page_tokens) {}
  // Valid until the next call of BeginStep but one.
  DeviceRope* Get(const Rotary& rotary);
  // Forgets what the last step needs no more, and what the last two did not use if there are many.
  void BeginStep();

 private:
  struct Entry {
    std::unique_ptr<DeviceRope> rope;
    int64_t last_step = 0;
  };
  CudaMemory* const memory_;
  const int page_tokens_;
  int64_t step_ = 0;
  std::map<Rotary, Entry> entries_;
};

}  // namespace folio::cuda
