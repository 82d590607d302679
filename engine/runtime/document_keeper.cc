#include "engine/runtime/document_keeper.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Answers go before: they take all processors, and a document is saved soon enough.
constexpr int kSaverNiceness = 10;
// Of a document, or more.
constexpr int64_t kManifestBytes = 4096;

int64_t TextBytesOf(const DocumentKeeper::SaveOrder& order) {
  return std::ssize(*order.tokens) * DocumentKeeper::kBytesPerToken + kManifestBytes;
}

// Of one document, that the home did not take: they take as much memory again.
constexpr int kMaxCopiedPages = SegmentHome::kPages;

// At a time, of documents that questions wait for.
constexpr int kLoads = 2;
constexpr int kReaders = 4;

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

// A page that the home has not taken, as it is in memory.
class CopiedPage final : public PageFile {
 public:
  CopiedPage(const KvStore& store, FrameId frame)
      : slice_bytes_(static_cast<size_t>(store.geometry().sealed_slice_bytes())) {
    const SliceMemory memory = store.page_memory();
    const int num_slices = store.geometry().num_slices();
    bytes_.reserve(num_slices * slice_bytes_);
    for (int slice = 0; slice < num_slices; ++slice) {
      const std::byte* const from = memory.Slice(frame, slice);
      bytes_.insert(bytes_.end(), from, from + slice_bytes_);
    }
  }
  absl::Status Read(int slice, int /*page*/, std::span<std::byte* const> to) override {
    std::memcpy(to[0], bytes_.data() + slice * slice_bytes_, slice_bytes_);
    return absl::OkStatus();
  }

 private:
  const size_t slice_bytes_;
  std::vector<std::byte> bytes_;
};

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
      readers_(kReaders),
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
  writes_->Note();
  if (--pending_ == 0) changed_.NotifyAll();
}

bool DocumentKeeper::Stop(std::optional<std::chrono::milliseconds> patience) {
  MutexLock lock(&mutex_);
  stopped_ = true;
  const DiskProgress begun;
  while (pending_ > 0) {
    if (!patience.has_value()) {
      changed_.Wait(&mutex_);
      continue;
    }
    const auto end = std::max({begun.last(), reads_->last(), writes_->last()}) + *patience;
    if (std::chrono::steady_clock::now() >= end) return false;
    changed_.WaitUntil(&mutex_, end);
  }
  return true;
}

// Within the lock: after Stop there may be no engine any more.
void DocumentKeeper::Tell(EngineCommands* commands) {
  MutexLock lock(&mutex_);
  if (!stopped_) post_(std::move(*commands));
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
    Tell(told.get());
    End();
  });
  if (!Begin()) return;
  absl::Cleanup end = [this] { End(); };
  if (threads == &saver_ && home_ != nullptr) {
    home_->AfterWrites([this, tasks] { saver_.Post(tasks.get()); });
  } else {
    threads->Post(tasks.get());
  }
  std::move(end).Cancel();
}

template <typename Result>
DiskProgressPtr DocumentKeeper::OrderRead(std::function<absl::StatusOr<Result>(DiskProgress*)> work,
                                          Done<Result> done) {
  auto progress = std::make_shared<DiskProgress>(reads_);
  Order<Result>(
      &loader_,
      [this, progress, work = std::move(work)] {
        progress->Begin();
        absl::Cleanup end = [this] { reads_->Note(); };
        return work(progress.get());
      },
      std::move(done));
  return progress;
}

template DiskProgressPtr DocumentKeeper::OrderRead(
    std::function<absl::StatusOr<DocumentKeeper::LoadedDocument>(DiskProgress*)>,
    Done<DocumentKeeper::LoadedDocument>);
template DiskProgressPtr DocumentKeeper::OrderRead(
    std::function<absl::StatusOr<DocumentKeeper::Filled>(DiskProgress*)>,
    Done<DocumentKeeper::Filled>);

std::vector<DocumentStore::ManifestPtr> DocumentKeeper::List() const { return store_->List(); }

const StoredRendition* DocumentKeeper::CacheOf(const Manifest& manifest) const {
  for (const StoredRendition& rendition : manifest.renditions) {
    if (rendition.model == options_.model) return &rendition;
  }
  return nullptr;
}

// ---- Saving, on the saver's thread ----

absl::StatusOr<std::unique_ptr<DocumentWriter>> DocumentKeeper::WriterFor(const SaveOrder& order) {
  const auto stored = store_->Find(order.handle.id);
  const bool goes_on = stored.ok() && (*stored)->incarnation == order.handle.incarnation;
  // One that was deleted, and that questions were still reading.
  if (stored.ok() && !goes_on) {
    FOLIO_RETURN_IF_ERROR(store_->Delete({order.handle.id, (*stored)->incarnation}));
  }
  NewDocument document;
  document.handle = order.handle;
  document.name = order.text.name;
  document.upload_token = order.text.upload_token;
  document.attention = order.attention;
  document.created_us = order.text.created_us;
  document.attributes = order.attributes;
  document.tokenizer = options_.tokenizer;
  document.prompt_format = order.text.prompt_format;
  document.lead_bytes = order.text.lead_bytes;
  FOLIO_ASSIGN_OR_RETURN(auto writer,
                         goes_on ? store_->Resume(order.handle) : store_->Begin(document));
  const auto num_there = static_cast<size_t>(writer->num_tokens());
  if (num_there == order.tokens->size() && writer->text_bytes() == order.text.num_bytes) {
    return writer;
  }
  const std::vector<int64_t> offsets = OffsetsOf(*tokenizer_, *order.tokens);
  FOLIO_RETURN_IF_ERROR(writer->AppendTokens(std::span(*order.tokens).subspan(num_there),
                                             std::span(offsets).subspan(num_there),
                                             order.text.num_bytes));
  return writer;
}

absl::StatusOr<StoredRendition> DocumentKeeper::WriteRendition(const SaveOrder& order,
                                                               DocumentWriter* writer) {
  StoredRendition rendition;
  FOLIO_ASSIGN_OR_RETURN(rendition.number, writer->RenditionOf(options_.model, order.attention));
  rendition.model = options_.model;
  rendition.attention = order.attention;
  rendition.num_tokens = order.cached_tokens;
  const std::vector<ContentKey> keys =
      SegmentKeys(options_.model, order.attention,
                  std::span(*order.tokens).first(static_cast<size_t>(order.cached_tokens)),
                  options_.page_tokens);
  const auto manifest = store_->Find(order.handle.id);
  const StoredRendition* const known =
      manifest.ok() ? (*manifest)->FindRendition(rendition.number) : nullptr;
  const std::vector<const StoredSegment*> there = SegmentsThere(order.image, keys, known);
  int64_t kept_bytes = 0;
  for (const StoredSegment* segment : there) {
    if (segment != nullptr) kept_bytes += segment->num_bytes();
  }
  DropCachesFor(order, CacheFileBytes(order.image) - kept_bytes);
  FOLIO_ASSIGN_OR_RETURN(rendition.segments, WriteCache(order.image, keys, there, rendition.number,
                                                        writer, writes_.get()));
  return rendition;
}

int64_t DocumentKeeper::BytesOf(const SaveOrder& order) {
  const int64_t of_cache = order.cached_tokens == 0 ? 0 : CacheFileBytes(order.image);
  return TextBytesOf(order) + of_cache;
}

void DocumentKeeper::DropCachesFor(const SaveOrder& order, int64_t num_bytes) {
  while (num_bytes <= options_.quota_bytes &&
         store_->usage().bytes.total() + num_bytes > options_.quota_bytes) {
    if (!DropOneCache(order.handle)) return;
  }
}

// Those of other models: a document has one cache.
void DocumentKeeper::DropOtherCaches(const DocumentHandle& handle, int64_t number) {
  const auto manifest = store_->Find(handle.id);
  if (!manifest.ok()) return;
  for (const StoredRendition& other : (*manifest)->renditions) {
    if (other.number != number) store_->DropRendition(handle, other.number).IgnoreError();
  }
}

absl::StatusOr<DocumentKeeper::SavedDocument> DocumentKeeper::SaveNow(const SaveOrder& order) {
  DropCachesFor(order, TextBytesOf(order));
  FOLIO_ASSIGN_OR_RETURN(const auto writer, WriterFor(order));
  const StoredState state = order.text.whole ? StoredState::kComplete : StoredState::kReceiving;
  SavedDocument saved;
  if (order.cached_tokens == 0) {
    FOLIO_RETURN_IF_ERROR(writer->Commit(state, {}));
  } else {
    FOLIO_ASSIGN_OR_RETURN(StoredRendition rendition, WriteRendition(order, writer.get()));
    FOLIO_RETURN_IF_ERROR(writer->Commit(state, {&rendition, 1}));
    DropOtherCaches(order.handle, rendition.number);
    saved.cache = std::make_shared<const StoredRendition>(std::move(rendition));
  }
  FOLIO_ASSIGN_OR_RETURN(const DocumentStore::ManifestPtr manifest, store_->Find(order.handle.id));
  store_->EmptyTrash();
  saved.text_bytes = order.text.num_bytes;
  saved.stored_bytes = manifest->data_bytes();
  saved.attributes = manifest->attributes;
  return saved;
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

void DocumentKeeper::Save(SaveOrder order, Done<SavedDocument> done) {
  const auto shared = std::make_shared<const SaveOrder>(std::move(order));
  const auto work = [this, shared] {
    auto saved = SaveNow(*shared);
    MutexLock lock(&mutex_);
    ++(saved.ok() ? counts_.saves : counts_.save_failures);
    return saved;
  };
  Order<SavedDocument>(&saver_, work, std::move(done));
}

// ---- Engine thread ----

absl::StatusOr<std::vector<SegmentHome::Place>> DocumentKeeper::PlacesOf(
    const KvStore& store, const SequenceKv& kv) const {
  std::vector<SegmentHome::Place> places;
  if (home_ == nullptr) return places;
  int num_copies = 0;
  const int64_t end = kv.is_window ? kv.first_page : kv.open_page;
  for (int64_t page = kv.first_page; page < end; ++page) {
    const FrameId frame = kv.pages[page - kv.first_page];
    if (!store.IsOnlyInMemory(frame)) {
      places.push_back(home_->PlaceOf(frame));
    } else if (++num_copies <= kMaxCopiedPages) {
      places.push_back({std::make_shared<CopiedPage>(store, frame), 0});
    } else {
      return absl::ResourceExhaustedError(absl::StrCat(
          "too many pages could not be written to disk: ", store.home_error().message()));
    }
  }
  return places;
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
