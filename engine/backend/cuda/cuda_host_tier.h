#pragma once

#include <deque>
#include <vector>

#include "engine/backend/cuda/device_types.h"
#include "engine/backend/cuda/workspace.h"
#include "engine/types/host_tier.h"

namespace folio::cuda {

// Pinned memory of the host for whole pages, and the memory of the device's cache of their slices.
class CudaHostTier final : public HostTier {
 public:
  explicit CudaHostTier(CudaMemory* memory)
      : memory_(memory), home_(memory), stagings_{Staging(memory), Staging(memory)} {}
  ~CudaHostTier() override;

  absl::Status Setup(const Layout& layout) override;
  void WriteHome(FrameId page, const std::byte* frame) override;
  std::byte* Page(FrameId page) override { return home_.Get(0) + page * layout_.page_bytes; }
  void Forget(FrameId page) override;
  SliceReads counts() const override { return counts_; }
  SliceReads CountsOf(int reader) const override;

  // For kernels; without slots if it was not set up.
  const SliceCache& cache() const { return cache_; }

  // Around the launches of a step of so many sequences; at most two steps are under way.
  void BeginStep(int num_readers);
  void SendBack();
  // The oldest of them is finished.
  void Receive();

 private:
  int64_t SentBytes(int num_readers) const {
    return static_cast<int64_t>(sizeof(SliceCounts) + 2 * sizeof(int) * num_readers);
  }

  CudaMemory* const memory_;
  Layout layout_;
  Staging home_;
  Buffer slots_;
  Buffer slot_of_;
  Buffer uses_;
  Buffer owners_;
  Buffer stamps_;
  Buffer missing_;
  // SliceCounts, then hits and misses of each reader: sent back as they lie.
  Buffer counted_;
  SliceCache cache_ = {};
  Staging stagings_[2];
  int turn_ = 0;
  int num_readers_ = 0;    // of the step that is being launched
  std::deque<int> sent_;   // readers of the steps under way
  std::vector<int> last_;  // of the readers of the last step: hits and misses
  SliceReads counts_;
};

}  // namespace folio::cuda
