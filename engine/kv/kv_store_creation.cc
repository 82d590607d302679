// How the memory of the cache is divided into pools, for each way in which pages may lie.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/kv/kv_store.h"

namespace folio {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Summary frames that short sequences may hold beside the bound of long ones.
constexpr int64_t kPartialSummaries = 128;

// Slices that a step reads at a time at least, and as many on their way.
constexpr int64_t kLeastWave = 32;

// Of the memory of a device with a tier below it: one part in so many is for frames, the rest for
// slices of pages that are at home.
constexpr int64_t kFrameShare = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvGeometry& geometry,
                                                         int64_t memory_bytes, Memory* memory,
                                                         const KvTiers& tiers) {
  std::unique_ptr<KvStore> store(new KvStore(geometry, memory_bytes));
  store->memory_ = memory;
  if (tiers.host != nullptr) {
    FOLIO_RETURN_IF_ERROR(store->CreateHosted(memory, tiers));
    return store;
  }
  FOLIO_RETURN_IF_ERROR(store->CreatePools(memory, memory_bytes, memory_bytes));
  if (tiers.home != nullptr) {
    FOLIO_RETURN_IF_ERROR(store->CreateTiers(memory, tiers));
  } else if (geometry.sealed_bits != 0) {
    FOLIO_RETURN_IF_ERROR(store->CreateSealed(memory, tiers.step_tokens));
  }
  return store;
}

absl::Status KvStore::CreateSealed(Memory* memory, int step_tokens) {
  const int64_t step_bytes = (CeilDiv(step_tokens, geometry_.page_tokens) + 1) * open_bytes();
  page_bytes_ = FramePool::RoundedBytes(geometry_.sealed_frame_bytes());
  capacity_bytes_ = memory_bytes_ - step_bytes;
  if (capacity_bytes_ < page_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the KV budget of ", memory_bytes_, " bytes holds not even one step: ", step_bytes,
        " bytes of pages that are written, and a page of ", page_bytes_,
        "; raise --kv-bytes or lower --step-tokens"));
  }
  const int64_t max_pages = capacity_bytes_ / page_bytes_;
  FOLIO_ASSIGN_OR_RETURN(sealed_,
                         FramePool::Create(memory, geometry_.sealed_frame_bytes(), max_pages));
  sealing_ = std::make_unique<SealingPages>(frames_.get(), sealed_.get(), max_pages);
  pages_ = sealing_.get();
  return absl::OkStatus();
}

absl::Status KvStore::CreatePools(Memory* memory, int64_t frame_bytes, int64_t paged_bytes) {
  page_bytes_ = FramePool::RoundedBytes(geometry_.frame_bytes());
  if (frame_bytes < page_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("the KV budget of ", frame_bytes,
                                                   " bytes is smaller than one page of ",
                                                   page_bytes_, " bytes; raise --kv-bytes"));
  }
  FOLIO_ASSIGN_OR_RETURN(
      frames_, FramePool::Create(memory, geometry_.frame_bytes(), frame_bytes / page_bytes_));
  const int64_t num_summaries =
      SummaryPoolBytes(geometry_, paged_bytes, memory->commits_at_once()) /
      FramePool::RoundedBytes(geometry_.summary_frame_bytes());
  FOLIO_ASSIGN_OR_RETURN(summaries_,
                         FramePool::Create(memory, geometry_.summary_frame_bytes(), num_summaries));
  if (memory->commits_at_once()) num_summary_frames_ = num_summaries;
  pages_ = frames_.get();
  return absl::OkStatus();
}

absl::Status KvStore::CreateTiers(Memory* memory, const KvTiers& tiers) {
  const int64_t slot_bytes = FramePool::RoundedBytes(geometry_.sealed_slice_bytes());
  const int num_slices = geometry_.num_slices();
  page_bytes_ = slot_bytes * num_slices;
  const int64_t step_bytes =
      (CeilDiv(tiers.step_tokens, geometry_.page_tokens) + 1) * (page_bytes_ + open_bytes());
  holdable_bytes_ = memory_bytes_ - step_bytes - 2 * kLeastWave * slot_bytes;
  const int64_t max_frames = tiers.home_bytes / page_bytes_;
  if (holdable_bytes_ < page_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the KV budget of ", memory_bytes_, " bytes holds not even one step: ", step_bytes,
        " bytes of pages that are written, ", 2 * kLeastWave * slot_bytes,
        " of slices that are read, and a page of ", page_bytes_,
        "; raise --kv-bytes or lower --step-tokens"));
  }
  if (max_frames < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-disk-bytes of ", tiers.home_bytes,
                                                   " is smaller than one page of ", page_bytes_,
                                                   " bytes"));
  }
  FOLIO_ASSIGN_OR_RETURN(slots_, SlotCache::Create(memory, slot_bytes, memory_bytes_ / slot_bytes,
                                                   max_frames * num_slices));
  tiered_ = std::make_unique<TieredPages>(slots_.get(), tiers.home, num_slices, max_frames);
  mover_ =
      std::make_unique<TierMover>(slots_.get(), tiered_.get(), tiers.home, geometry_.num_kv_heads);
  pages_ = tiered_.get();
  if (geometry_.sealed_bits != 0) {
    sealing_ = std::make_unique<SealingPages>(frames_.get(), tiered_.get(), max_frames);
    pages_ = sealing_.get();
  }
  capacity_bytes_ = max_frames * page_bytes_;
  return absl::OkStatus();
}

absl::Status KvStore::CreateHosted(Memory* memory, const KvTiers& tiers) {
  page_bytes_ = FramePool::RoundedBytes(geometry_.frame_bytes());
  const int num_slices = geometry_.num_slices();
  const int64_t step_bytes = (CeilDiv(tiers.step_tokens, geometry_.page_tokens) + 1) * page_bytes_;
  const int64_t frame_bytes =
      std::max(step_bytes + page_bytes_, memory_bytes_ / kFrameShare / page_bytes_ * page_bytes_);
  const int64_t least_cache = kLeastWave * geometry_.slice_bytes();
  if (memory_bytes_ < frame_bytes + least_cache) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the KV budget of ", memory_bytes_, " bytes holds not even one step: ", step_bytes,
        " bytes of pages that are written, a page of ", page_bytes_, " and ", least_cache,
        " of slices that are read; raise --kv-bytes or lower --step-tokens"));
  }
  const int64_t max_pages = tiers.home_bytes / page_bytes_;
  if (max_pages < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-host-bytes of ", tiers.home_bytes,
                                                   " is smaller than one page of ", page_bytes_,
                                                   " bytes"));
  }
  FOLIO_RETURN_IF_ERROR(CreatePools(memory, frame_bytes, max_pages * page_bytes_));
  FOLIO_RETURN_IF_ERROR(tiers.host->Setup({.max_pages = max_pages,
                                           .page_bytes = page_bytes_,
                                           .slice_bytes = geometry_.slice_bytes(),
                                           .slices_per_page = num_slices,
                                           .slices_per_layer = geometry_.num_kv_heads,
                                           .cache_bytes = memory_bytes_ - frame_bytes,
                                           .max_readers = tiers.step_tokens}));
  host_tier_ = tiers.host;
  hosted_ = std::make_unique<HostedPages>(frames_.get(), tiers.host, max_pages);
  pages_ = hosted_.get();
  holdable_bytes_ = frame_bytes - step_bytes;
  capacity_bytes_ = max_pages * page_bytes_;
  return absl::OkStatus();
}

int64_t KvStore::SummaryPoolBytes(const KvGeometry& geometry, int64_t capacity_bytes,
                                  bool commits_at_once) {
  const int64_t frame_bytes = FramePool::RoundedBytes(geometry.summary_frame_bytes());
  int64_t count = std::max<int64_t>(1, capacity_bytes / frame_bytes);
  if (commits_at_once) {
    // A frame stands for at least kTile pages, the last one of a sequence apart.
    const int64_t num_pages = capacity_bytes / FramePool::RoundedBytes(geometry.frame_bytes());
    count = std::min(count, 2 * num_pages / kTile + kPartialSummaries);
  }
  return count * frame_bytes;
}

}  // namespace folio
