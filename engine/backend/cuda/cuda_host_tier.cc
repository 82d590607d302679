#include "engine/backend/cuda/cuda_host_tier.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {
namespace {

// What the cache takes per slice of all pages, and per slot beside the slice itself.
constexpr int64_t kSliceBytes = sizeof(int) + 1;
constexpr int64_t kSlotBytes = sizeof(int64_t) + sizeof(int);

}  // namespace

CudaHostTier::~CudaHostTier() { memory_->Finish(); }  // copies to the host may be under way

absl::Status CudaHostTier::Setup(const Layout& layout) {
  const int64_t num_slices = layout.max_pages * layout.slices_per_page;
  // Those of one layer may all be missing.
  const int64_t missing_bytes =
      layout.max_pages * layout.slices_per_layer * int64_t{sizeof(int64_t)};
  const int64_t table_bytes = num_slices * kSliceBytes + missing_bytes;
  const int64_t num_slots =
      (layout.cache_bytes - table_bytes) / (layout.slice_bytes + kSlotBytes) - 1;
  if (num_slots < 1 || num_slots > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tables of ", layout.max_pages, " pages in the host's memory take ", table_bytes,
        " of the ", layout.cache_bytes,
        " bytes for slices of them on the device; raise --kv-bytes or lower --kv-host-bytes"));
  }
  layout_ = layout;
  FOLIO_RETURN_IF_ERROR(home_.Reserve(layout.max_pages * layout.page_bytes));
  for (Staging& staging : stagings_) {
    FOLIO_RETURN_IF_ERROR(staging.Reserve(SentBytes(layout.max_readers)));
  }
  const auto create = [&](int64_t bytes, Buffer* buffer) -> absl::Status {
    FOLIO_ASSIGN_OR_RETURN(*buffer, Buffer::Create(memory_, bytes));
    return absl::OkStatus();
  };
  FOLIO_RETURN_IF_ERROR(create(num_slots * layout.slice_bytes, &slots_));
  FOLIO_RETURN_IF_ERROR(create(num_slices * int64_t{sizeof(int)}, &slot_of_));
  FOLIO_RETURN_IF_ERROR(create(num_slices, &uses_));
  FOLIO_RETURN_IF_ERROR(create((num_slots + 1) * int64_t{sizeof(int64_t)}, &owners_));
  FOLIO_RETURN_IF_ERROR(create((num_slots + 1) * int64_t{sizeof(int)}, &stamps_));
  FOLIO_RETURN_IF_ERROR(create(missing_bytes, &missing_));
  FOLIO_RETURN_IF_ERROR(create(SentBytes(layout.max_readers), &counted_));
  SliceCounts counts = {};
  counts.turn = 1;  // of the stamps, which are 0, none
  memory_->Write(counted_.data(), &counts, sizeof(counts));
  cache_ = {.num_slots = static_cast<int>(num_slots),
            .home = reinterpret_cast<const unsigned char*>(home_.Get(0)),
            .slots = slots_.as<unsigned char>(),
            .slot_of = slot_of_.as<int>(),
            .uses = uses_.as<unsigned char>(),
            .owners = owners_.as<int64_t>(),
            .stamps = stamps_.as<unsigned>(),
            .missing = missing_.as<int64_t>(),
            .counts = counted_.as<SliceCounts>(),
            .reads_of = reinterpret_cast<int*>(counted_.data() + sizeof(SliceCounts))};
  return memory_->status();
}

void CudaHostTier::WriteHome(FrameId page, const std::byte* frame) {
  memory_->ReadAsync(Page(page), frame, layout_.page_bytes);
  Forget(page);
}

void CudaHostTier::Forget(FrameId page) {
  const int64_t first = int64_t{page} * layout_.slices_per_page;
  memory_->NoteIn("Forget", Zero(memory_->stream(), slot_of_.as<int>() + first,
                                 layout_.slices_per_page * int64_t{sizeof(int)}));
  memory_->NoteIn("Forget", Zero(memory_->stream(), uses_.as<unsigned char>() + first,
                                 layout_.slices_per_page));
}

void CudaHostTier::BeginStep(int num_readers) {
  if (cache_.num_slots == 0) return;
  num_readers_ = num_readers;
  memory_->NoteIn("BeginStep", Zero(memory_->stream(), cache_.reads_of,
                                    SentBytes(num_readers) - int64_t{sizeof(SliceCounts)}));
}

void CudaHostTier::SendBack() {
  if (cache_.num_slots == 0) return;
  turn_ = 1 - turn_;
  const int64_t bytes = SentBytes(num_readers_);
  memory_->ReadAsync(stagings_[turn_].Get(bytes), counted_.data(), bytes);
  sent_.push_back(num_readers_);
}

void CudaHostTier::Receive() {
  if (sent_.empty()) return;
  // The other one if another step was launched since.
  const std::byte* from = stagings_[sent_.size() == 1 ? turn_ : 1 - turn_].data();
  last_.resize(2 * sent_.front());
  sent_.pop_front();
  std::memcpy(last_.data(), from + sizeof(SliceCounts), last_.size() * sizeof(int));
  for (size_t n = 0; n < last_.size(); n += 2) {
    counts_.hits += last_[n];
    counts_.misses += last_[n + 1];
    counts_.bytes_in += last_[n + 1] * layout_.slice_bytes;
  }
}

SliceReads CudaHostTier::CountsOf(int reader) const {
  const auto at = 2 * static_cast<size_t>(reader);
  if (at >= last_.size()) return {};
  return {
      .hits = last_[at], .misses = last_[at + 1], .bytes_in = last_[at + 1] * layout_.slice_bytes};
}

}  // namespace folio::cuda
