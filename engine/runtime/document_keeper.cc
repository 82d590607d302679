#include "engine/runtime/document_keeper.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/catch_errors.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Answers go before: they take all processors, and a document is saved soon enough.
constexpr int kSaverNiceness = 10;
// At a time, of documents that questions wait for.
constexpr int kLoads = 2;

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

 private:
  absl::Status Open() {
    MutexLock lock(&mutex_);
    if (segment_.has_value()) return absl::OkStatus();
    FOLIO_ASSIGN_OR_RETURN(segment_, store_->OpenSegment(handle_, rendition_, stored_));
    return absl::OkStatus();
  }

  const DocumentStore* const store_;
  const DocumentHandle handle_;
  const int64_t rendition_;
  const StoredSegment stored_;
  const std::shared_ptr<void> use_;
  Mutex mutex_;
  std::optional<Segment> segment_;  // does not change once it is there
};

// Where each token begins, if the pieces of the tokens are the text.
std::vector<int64_t> OffsetsOf(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::vector<int64_t> offsets;
  offsets.reserve(tokens.size());
  int64_t offset = 0;
  for (const int32_t token : tokens) {
    offsets.push_back(offset);
    offset += static_cast<int64_t>(tokenizer.pieces()[token].text.size());
  }
  return offsets;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentKeeper>> DocumentKeeper::Open(FileSystem* files,
                                                                     SegmentHome* home,
                                                                     const Tokenizer* tokenizer,
                                                                     const KeeperOptions& options) {
  FOLIO_ASSIGN_OR_RETURN(
      auto store, DocumentStore::Open(files, {.quota_bytes = options.quota_bytes, .now_us = {}}));
  return std::unique_ptr<DocumentKeeper>(
      new DocumentKeeper(home, tokenizer, options, std::move(store)));
}

DocumentKeeper::DocumentKeeper(SegmentHome* home, const Tokenizer* tokenizer,
                               const KeeperOptions& options, std::unique_ptr<DocumentStore> store)
    : home_(home),
      tokenizer_(tokenizer),
      options_(options),
      store_(std::move(store)),
      saver_(1, kSaverNiceness),
      loader_(kLoads),
      updater_(1) {
  // What the process before has not come to.
  saver_.Post([this] { CatchErrors([this] { store_->EmptyTrash(); }).IgnoreError(); });
}

bool DocumentKeeper::Begin() {
  MutexLock lock(&mutex_);
  if (stopped_) return false;
  ++pending_;
  return true;
}

void DocumentKeeper::End() {
  MutexLock lock(&mutex_);
  if (--pending_ == 0) changed_.NotifyAll();
}

void DocumentKeeper::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  while (pending_ > 0) changed_.Wait(&mutex_);
}

// All memory is taken here: what is ordered ends, and is told, without any.
template <typename Result>
void DocumentKeeper::Order(TaskThreads* threads, std::function<absl::StatusOr<Result>()> work,
                           Done<Result> done) {
  const auto result =
      std::make_shared<absl::StatusOr<Result>>(absl::InternalError("it was not done"));
  const auto told = std::make_shared<EngineCommands>(
      OneCommand({[result, done = std::move(done)](EngineLoop& loop) mutable {
        done(loop, std::move(*result));
      }}));
  const auto tasks = std::make_shared<TaskThreads::Tasks>();
  tasks->push_back([this, result, told, work = std::move(work)] {
    const absl::Status caught = CatchErrors([&] { *result = work(); });
    if (!caught.ok()) *result = caught;
    post_(std::move(*told));
    End();
  });
  if (!Begin()) return;
  absl::Cleanup end = [this] { End(); };
  if (threads == &saver_) {
    home_->AfterWrites([this, tasks] { saver_.Post(tasks.get()); });
  } else {
    threads->Post(tasks.get());
  }
  std::move(end).Cancel();
}

std::vector<DocumentStore::ManifestPtr> DocumentKeeper::List() const {
  std::vector<DocumentStore::ManifestPtr> list = store_->List();
  std::erase_if(list, [](const auto& m) { return m->state != StoredState::kComplete; });
  return list;
}

const StoredRendition* DocumentKeeper::CacheOf(const Manifest& manifest) const {
  for (const StoredRendition& rendition : manifest.renditions) {
    if (rendition.model == options_.model) return &rendition;
  }
  return nullptr;
}

// ---- Saving, on the saver's thread ----

absl::StatusOr<std::unique_ptr<DocumentWriter>> DocumentKeeper::WriterFor(const SaveOrder& order) {
  const auto stored = store_->Find(order.handle.id);
  if (stored.ok() && (*stored)->incarnation == order.handle.incarnation) {
    return store_->Resume(order.handle);
  }
  // One that was deleted, and that questions were still reading.
  if (stored.ok()) FOLIO_RETURN_IF_ERROR(store_->Delete({order.handle.id, (*stored)->incarnation}));
  NewDocument document;
  document.handle = order.handle;
  document.name = order.text.name;
  document.upload_token = order.text.upload_token;
  document.attention = order.attention;
  document.created_us = order.text.created_us;
  document.attributes = order.attributes;
  document.tokenizer = options_.tokenizer;
  FOLIO_ASSIGN_OR_RETURN(auto writer, store_->Begin(document));
  FOLIO_RETURN_IF_ERROR(writer->AppendTokens(*order.tokens, OffsetsOf(*tokenizer_, *order.tokens),
                                             order.text.num_bytes));
  return writer;
}

absl::StatusOr<std::vector<StoredSegment>> DocumentKeeper::WriteSegments(const SaveOrder& order,
                                                                         int64_t number,
                                                                         DocumentWriter* writer) {
  const std::vector<ContentKey> keys =
      SegmentKeys(options_.model, order.attention, *order.tokens, options_.page_tokens);
  const int64_t needed = CacheFileBytes(order.image);
  while (needed <= options_.quota_bytes &&
         store_->usage().bytes.total() + needed > options_.quota_bytes) {
    if (!DropOneCache(order.handle)) break;
  }
  return WriteCache(order.image, keys, number, writer);
}

absl::StatusOr<DocumentKeeper::SavedCache> DocumentKeeper::SaveNow(const SaveOrder& order) {
  FOLIO_ASSIGN_OR_RETURN(const auto writer, WriterFor(order));
  auto rendition = std::make_shared<StoredRendition>();
  FOLIO_ASSIGN_OR_RETURN(rendition->number, writer->RenditionOf(options_.model, order.attention));
  rendition->model = options_.model;
  rendition->attention = order.attention;
  rendition->num_tokens = std::ssize(*order.tokens);
  FOLIO_ASSIGN_OR_RETURN(rendition->segments,
                         WriteSegments(order, rendition->number, writer.get()));
  FOLIO_RETURN_IF_ERROR(writer->Commit(StoredState::kComplete, {rendition.get(), 1}));
  FOLIO_ASSIGN_OR_RETURN(DocumentStore::ManifestPtr manifest, store_->Find(order.handle.id));
  // Of other models; the document has one cache.
  for (const StoredRendition& other : manifest->renditions) {
    if (other.number == rendition->number) continue;
    store_->DropRendition(order.handle, other.number).IgnoreError();
  }
  FOLIO_ASSIGN_OR_RETURN(manifest, store_->Find(order.handle.id));
  store_->EmptyTrash();
  return SavedCache{std::move(rendition), manifest->data_bytes(), manifest->attributes};
}

bool DocumentKeeper::DropOneCache(const DocumentHandle& but) {
  DocumentStore::ManifestPtr oldest;
  for (const DocumentStore::ManifestPtr& manifest : store_->List()) {
    const DocumentHandle handle{manifest->id, manifest->incarnation};
    const bool may_go = handle != but && !manifest->attributes.pinned &&
                        !manifest->renditions.empty() && !InUse(handle);
    const auto last_use = [](const Manifest& m) {
      return std::max(m.updated_us, m.attributes.last_used_us);
    };
    if (may_go && (oldest == nullptr || last_use(*manifest) < last_use(*oldest))) oldest = manifest;
  }
  if (oldest == nullptr) return false;
  const DocumentHandle handle{oldest->id, oldest->incarnation};
  for (const StoredRendition& rendition : oldest->renditions) {
    if (!store_->DropRendition(handle, rendition.number).ok()) return false;
  }
  store_->EmptyTrash();
  return true;
}

void DocumentKeeper::Save(SaveOrder order, Done<SavedCache> done) {
  const auto shared = std::make_shared<const SaveOrder>(std::move(order));
  const auto work = [this, shared] {
    auto saved = SaveNow(*shared);
    MutexLock lock(&mutex_);
    ++(saved.ok() ? counts_.saves : counts_.save_failures);
    return saved;
  };
  Order<SavedCache>(&saver_, work, std::move(done));
}

// ---- Loading, on the loader's threads ----

absl::StatusOr<DocumentKeeper::LoadedDocument> DocumentKeeper::LoadNow(const LoadOrder& order) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentStore::ManifestPtr manifest, store_->Find(order.handle.id));
  auto tokens = store_->ReadTokens(order.handle);
  if (absl::IsDataLoss(tokens.status())) {
    store_->QuarantineDocument(order.handle).IgnoreError();
  }
  FOLIO_RETURN_IF_ERROR(tokens.status());
  if (order.attachment != nullptr) order.attachment->OnTokensRead(*tokens);
  LoadedDocument loaded{*std::move(tokens), nullptr};
  const StoredRendition* const cache = CacheOf(*manifest);
  const bool is_whole = cache != nullptr && cache->attention == order.attention &&
                        cache->num_tokens == std::ssize(loaded.tokens);
  if (!is_whole) return loaded;
  const std::vector<ContentKey> keys =
      SegmentKeys(options_.model, order.attention, loaded.tokens, options_.page_tokens);
  if (IsCacheOf(*cache, order.layout_of(cache->num_tokens), keys)) {
    loaded.cache = std::make_shared<const StoredRendition>(*cache);
  } else {
    store_->Quarantine(order.handle, cache->number).IgnoreError();
  }
  return loaded;
}

void DocumentKeeper::Load(LoadOrder order, Done<LoadedDocument> done) {
  const auto shared = std::make_shared<const LoadOrder>(std::move(order));
  // While it is loaded its cache is not dropped.
  const auto work = [this, shared, use = UseOf(shared->handle)] {
    {
      MutexLock lock(&mutex_);
      ++counts_.loads;
    }
    return LoadNow(*shared);
  };
  Order<LoadedDocument>(&loader_, work, std::move(done));
}

void DocumentKeeper::Fill(const DocumentHandle& handle,
                          const std::shared_ptr<const StoredRendition>& cache, CacheImage image,
                          Done<Nothing> done) {
  const auto shared = std::make_shared<const CacheImage>(std::move(image));
  const auto work = [this, handle, cache, shared]() -> absl::StatusOr<Nothing> {
    const absl::Status read = ReadCache(*store_, handle, *cache, *shared);
    if (read.ok()) return Nothing();
    if (absl::IsDataLoss(read)) store_->Quarantine(handle, cache->number).IgnoreError();
    return read;
  };
  Order<Nothing>(&loader_, work, std::move(done));
}

// ---- Engine thread ----

std::vector<SegmentHome::Place> DocumentKeeper::PlacesOf(const SequenceKv& kv) const {
  std::vector<SegmentHome::Place> places;
  for (int64_t page = kv.first_page; page < kv.open_page; ++page) {
    places.push_back(home_->PlaceOf(kv.pages[page - kv.first_page]));
  }
  return places;
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
  const auto& [first_page, place] = *std::prev(files_.upper_bound(page));
  home_->Adopt(frame, {place.file, static_cast<int>(page - first_page)});
}

void DocumentKeeper::Delete(const DocumentHandle& handle) {
  const auto work = [this, handle]() -> absl::StatusOr<Nothing> {
    const absl::Status deleted = store_->Delete(handle);
    store_->EmptyTrash();
    if (!deleted.ok()) return deleted;
    return Nothing();
  };
  Order<Nothing>(&saver_, work, [](EngineLoop&, const absl::StatusOr<Nothing>&) {});
}

void DocumentKeeper::Quarantine(const DocumentHandle& handle, int64_t rendition) {
  const auto work = [this, handle, rendition]() -> absl::StatusOr<Nothing> {
    FOLIO_RETURN_IF_ERROR(store_->Quarantine(handle, rendition));
    return Nothing();
  };
  Order<Nothing>(&saver_, work, [](EngineLoop&, const absl::StatusOr<Nothing>&) {});
}

void DocumentKeeper::UpdateAttributes(const DocumentHandle& handle, ChangeAttributes change,
                                      const std::function<void(const absl::Status&)>& done) {
  TaskThreads::Tasks tasks;
  tasks.emplace_back([this, handle, done, change = std::move(change)] {
    absl::Status written;
    const absl::Status caught =
        CatchErrors([&] { written = store_->UpdateAttributes(handle, change); });
    if (!caught.ok()) written = caught;
    done(absl::IsNotFound(written) ? absl::OkStatus() : written);
    End();
  });
  if (!Begin()) return done(absl::UnavailableError("the engine stops"));
  updater_.Post(&tasks);
}

std::shared_ptr<void> DocumentKeeper::UseOf(const DocumentHandle& handle) {
  MutexLock lock(&mutex_);
  std::weak_ptr<void>& known = uses_[handle.incarnation];
  std::shared_ptr<void> use = known.lock();
  if (use == nullptr) known = use = std::make_shared<char>();
  return use;
}

bool DocumentKeeper::InUse(const DocumentHandle& handle) const {
  MutexLock lock(&mutex_);
  const auto it = uses_.find(handle.incarnation);
  return it != uses_.end() && !it->second.expired();
}

DocumentKeeper::Counts DocumentKeeper::counts() const {
  MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace folio
