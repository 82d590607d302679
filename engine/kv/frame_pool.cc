#include "engine/kv/frame_pool.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

// Freed frames kept committed, to spare page faults.
constexpr int64_t kResidentFreeBytes = int64_t{256} << 20;

}  // namespace

int64_t FramePool::RoundedBytes(int64_t frame_bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (frame_bytes + page - 1) / page * page;
}

absl::StatusOr<std::unique_ptr<FramePool>> FramePool::Create(Memory* memory, int64_t frame_bytes,
                                                             int64_t max_frames) {
  frame_bytes = RoundedBytes(frame_bytes);
  const auto base = memory->Allocate(frame_bytes * max_frames);
  if (!base.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(base.status().message(), " for the KV cache; lower --kv-bytes"));
  }
  std::unique_ptr<FramePool> pool(new FramePool(memory, *base, frame_bytes, max_frames));
  for (auto* list : {&pool->refs_, &pool->resident_, &pool->returned_}) list->reserve(max_frames);
  return pool;
}

FramePool::FramePool(Memory* memory, std::byte* base, int64_t frame_bytes, int64_t max_frames)
    : pool_memory_(memory),
      base_(base),
      frame_bytes_(frame_bytes),
      max_frames_(max_frames),
      block_bytes_(memory->discard_bytes()),
      holders_((num_bytes() + block_bytes_ - 1) / block_bytes_) {}

FramePool::~FramePool() { pool_memory_->Free(base_, num_bytes()); }

void FramePool::Copy(FrameId from, FrameId to) {
  pool_memory_->Copy(memory().Frame(to), memory().Frame(from), frame_bytes_);
}

FrameId FramePool::Allocate() {
  FrameId id = kNoFrame;
  if (!resident_.empty()) {
    id = resident_.back();
    resident_.pop_back();
  } else if (!returned_.empty()) {
    id = returned_.back();
    returned_.pop_back();
    HoldBlocks(id);
  } else {
    if (static_cast<int64_t>(refs_.size()) == max_frames_) return kNoFrame;
    id = static_cast<FrameId>(refs_.size());
    refs_.push_back(0);
    HoldBlocks(id);
  }
  refs_[id] = 1;
  ++used_frames_;
  return id;
}

void FramePool::AddRef(FrameId id, bool /*open*/) { ++refs_[id]; }

void FramePool::Release(FrameId id, bool /*open*/) {
  if (--refs_[id] > 0) return;
  --used_frames_;
  if (static_cast<int64_t>(resident_.size()) * frame_bytes_ < kResidentFreeBytes) {
    resident_.push_back(id);
    return;
  }
  ReleaseBlocks(id);
  returned_.push_back(id);
}

void FramePool::HoldBlocks(FrameId id) {
  const int64_t end = (id + int64_t{1}) * frame_bytes_;
  for (int64_t block = id * frame_bytes_ / block_bytes_; block * block_bytes_ < end; ++block) {
    ++holders_[block];
  }
}

void FramePool::ReleaseBlocks(FrameId id) {
  const int64_t end = (id + int64_t{1}) * frame_bytes_;
  for (int64_t block = id * frame_bytes_ / block_bytes_; block * block_bytes_ < end; ++block) {
    if (--holders_[block] > 0) continue;
    const int64_t at = block * block_bytes_;
    pool_memory_->Discard(base_ + at, std::min(block_bytes_, num_bytes() - at));
  }
}

}  // namespace folio
