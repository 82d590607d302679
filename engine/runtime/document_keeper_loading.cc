// How stored documents come back: their tokens, and the cache of them.
#include <chrono>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/document_keeper.h"

namespace folio {
namespace {

// A stored segment, opened when it is read first.
class StoredPageFile final : public PageFile {
 public:
  StoredPageFile(const DocumentStore* store, DocumentHandle handle, int64_t rendition,
                 StoredSegment stored, std::shared_ptr<void> use)
      : store_(store),
        handle_(std::move(handle)),
        rendition_(rendition),
        stored_(stored),
        use_(std::move(use)) {}

  absl::Status Read(int slice, int page, std::span<std::byte* const> to) override {
    FOLIO_RETURN_IF_ERROR(Open());
    return segment_->Read(slice, page, to);
  }
  absl::Status Open() override {
    MutexLock lock(&mutex_);
    if (segment_.has_value()) return absl::OkStatus();
    FOLIO_ASSIGN_OR_RETURN(segment_, store_->OpenSegment(handle_, rendition_, stored_));
    return absl::OkStatus();
  }

 private:
  const DocumentStore* const store_;
  const DocumentHandle handle_;
  const int64_t rendition_;
  const StoredSegment stored_;
  const std::shared_ptr<void> use_;
  Mutex mutex_;
  std::optional<Segment> segment_;  // does not change once it is there
};

}  // namespace

absl::StatusOr<DocumentKeeper::LoadedDocument> DocumentKeeper::LoadNow(const LoadOrder& order) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentStore::ManifestPtr manifest, store_->Find(order.handle.id));
  auto tokens = store_->ReadTokens(order.handle);
  if (absl::IsDataLoss(tokens.status())) {
    store_->QuarantineDocument(order.handle).IgnoreError();
  }
  FOLIO_RETURN_IF_ERROR(tokens.status());
  if (order.attachment != nullptr) order.attachment->OnTokensRead(*tokens);
  LoadedDocument loaded{*std::move(tokens), manifest->text_bytes, nullptr};
  const StoredRendition* const cache = CacheOf(*manifest);
  const bool is_one = cache != nullptr && cache->attention == order.attention &&
                      cache->num_tokens <= std::ssize(loaded.tokens);
  if (!is_one) return loaded;
  const std::vector<ContentKey> keys = SegmentKeys(
      options_.model, order.attention,
      std::span(loaded.tokens).first(static_cast<size_t>(cache->num_tokens)), options_.page_tokens);
  if (IsCacheOf(*cache, order.layout_of(cache->num_tokens), keys)) {
    loaded.cache = std::make_shared<const StoredRendition>(*cache);
  } else {
    store_->Quarantine(order.handle, cache->number).IgnoreError();
  }
  return loaded;
}

DiskProgressPtr DocumentKeeper::Load(LoadOrder order, Done<LoadedDocument> done) {
  const auto shared = std::make_shared<const LoadOrder>(std::move(order));
  // While it is loaded its cache is not dropped.
  const auto work = [this, shared, use = UseOf(shared->handle)](DiskProgress*) {
    {
      MutexLock lock(&mutex_);
      ++counts_.loads;
    }
    return LoadNow(*shared);
  };
  return OrderRead<LoadedDocument>(work, std::move(done));
}

DiskProgressPtr DocumentKeeper::Fill(const DocumentHandle& handle,
                                     const std::shared_ptr<const StoredRendition>& cache,
                                     const std::shared_ptr<const CacheImage>& image,
                                     const std::shared_ptr<PageFile>& last_file,
                                     Done<Filled> done) {
  const auto work = [this, handle, cache, image,
                     last_file](DiskProgress* progress) -> absl::StatusOr<Filled> {
    const auto start = std::chrono::steady_clock::now();
    absl::Status read = last_file == nullptr ? absl::OkStatus() : last_file->Open();
    if (read.ok()) read = ReadCache(*store_, handle, *cache, *image, &readers_, progress);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (read.ok()) return Filled{BytesBesideSealedPages(*image), taken.count()};
    if (absl::IsDataLoss(read)) store_->Quarantine(handle, cache->number).IgnoreError();
    return read;
  };
  return OrderRead<Filled>(work, std::move(done));
}

DocumentKeeper::Adopter::Adopter(DocumentKeeper* keeper, const DocumentHandle& handle,
                                 const StoredRendition& cache)
    : home_(keeper->home_) {
  const std::shared_ptr<void> use = keeper->UseOf(handle);
  for (const StoredSegment& segment : cache.segments) {
    if (segment.shape.kind != SegmentKind::kPages) continue;
    files_[segment.shape.first_page] = {
        std::make_shared<StoredPageFile>(keeper->store_.get(), handle, cache.number, segment, use),
        0};
  }
}

void DocumentKeeper::Adopter::Adopt(FrameId frame, int64_t page) {
  if (home_ == nullptr) return;
  const auto& [first_page, place] = *std::prev(files_.upper_bound(page));
  home_->Adopt(frame, {place.file, static_cast<int>(page - first_page)});
}

}  // namespace folio
