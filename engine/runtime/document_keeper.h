#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/task_threads.h"
#include "engine/runtime/cache_files.h"
#include "engine/runtime/disk_progress.h"
#include "engine/runtime/document_info.h"
#include "engine/runtime/engine_command.h"
#include "engine/runtime/segment_home.h"
#include "engine/store/document_store.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

struct KeeperOptions {
  // What stored KV and stored token ids are good for.
  Fingerprint model = {};
  Fingerprint tokenizer = {};
  int64_t quota_bytes = 0;
  int page_tokens = 0;
  // What is loaded or filled and has not got on for so long, nobody should wait for.
  std::chrono::milliseconds read_deadline = std::chrono::seconds(10);
};

// Keeps documents on disk: writes what the engine has computed of them, and brings it back after a
// restart. Orders come from the engine thread and take their time elsewhere; how they ended is said
// by a command to the engine. The only place where the store of documents and the cache meet.
class DocumentKeeper {
 public:
  // Commands go to the engine thread; needs no memory.
  using Post = std::function<void(EngineCommands)>;

  // Borrows all three. `home` may be null: then pages do not lie in files while they are used.
  // Errors: those of DocumentStore::Open.
  static absl::StatusOr<std::unique_ptr<DocumentKeeper>> Open(FileSystem* files, SegmentHome* home,
                                                              const Tokenizer* tokenizer,
                                                              const KeeperOptions& options);
  ~DocumentKeeper() { Stop(); }

  // Orders may come from now on, until Stop: then nobody is told any more. It waits for those under
  // way; with a `patience` no longer than that for something to get on. False: some are left then,
  // and this object has to stay.
  void Start(Post post) { post_ = std::move(post); }
  bool Stop(std::optional<std::chrono::milliseconds> patience = std::nullopt)
      FOLIO_EXCLUDES(mutex_);

  int64_t quota_bytes() const { return options_.quota_bytes; }
  std::chrono::milliseconds read_deadline() const { return options_.read_deadline; }

  // All documents. Before Start.
  std::vector<DocumentStore::ManifestPtr> List() const;
  // Whether its token ids mean what they meant.
  bool KnowsTokens(const Manifest& manifest) const {
    return manifest.tokenizer == options_.tokenizer;
  }
  // The cache that this model has made; null: it has none.
  const StoredRendition* CacheOf(const Manifest& manifest) const;

  // ---- Engine thread ----

  // Where the home has the sealed pages of a sequence, or will have what is being written; of those
  // that it did not take, copies, if they are few. Errors: RESOURCE_EXHAUSTED if they are many.
  // Throws std::bad_alloc.
  absl::StatusOr<std::vector<SegmentHome::Place>> PlacesOf(const KvStore& store,
                                                           const SequenceKv& kv) const;

  // What there is of a document: its text, whole or not, and the cache of its first tokens. Nothing
  // that is pointed to may change before it is done.
  struct SaveOrder {
    DocumentHandle handle;
    StoredText text;
    DocumentAttributes attributes;
    std::string attention;  // AttentionText
    std::shared_ptr<const std::vector<int32_t>> tokens;
    int64_t cached_tokens = 0;  // 0: the text alone
    CacheImage image;
  };
  // What each token of a text takes on disk, or less: ids and offsets.
  static constexpr int64_t kBytesPerToken = 8;
  // What it takes on disk, about.
  static int64_t BytesOf(const SaveOrder& order);
  // It is durable.
  struct SavedDocument {
    // Null: the text alone was written.
    std::shared_ptr<const StoredRendition> cache;
    int64_t text_bytes = 0;
    int64_t stored_bytes = 0;
    DocumentAttributes attributes;  // as they are on disk
  };
  template <typename Result>
  using Done = absl::AnyInvocable<void(EngineLoop&, absl::StatusOr<Result>)>;
  void Save(SaveOrder order, Done<SavedDocument> done);

  // Of a stored document.
  struct LoadedDocument {
    std::vector<int32_t> tokens;
    int64_t text_bytes = 0;
    // Null: there is none that this model has made under the attention. It may be that of the first
    // tokens alone.
    std::shared_ptr<const StoredRendition> cache;
  };
  // `layout_of` says which frames the tokens have; it is called on another thread. Errors:
  // DATA_LOSS if the document is damaged, and is in the quarantine now.
  struct LoadOrder {
    DocumentHandle handle;
    std::string attention;
    std::shared_ptr<DocumentAttachment> attachment;
    std::function<CacheImage(int64_t num_tokens)> layout_of;
  };
  DiskProgressPtr Load(LoadOrder order, Done<LoadedDocument> done);

  // The home has the sealed pages of the cache where it is stored.
  class Adopter {
   public:
    Adopter(DocumentKeeper* keeper, const DocumentHandle& handle, const StoredRendition& cache);
    void Adopt(FrameId frame, int64_t page);
    // The segment at the end. If it is not full it goes when the document grows; once it is open it
    // can be read nevertheless. Null: there are no pages.
    std::shared_ptr<PageFile> last_file() const {
      return files_.empty() ? nullptr : files_.rbegin()->second.file;
    }

   private:
    SegmentHome* const home_;
    std::map<int64_t, SegmentHome::Place> files_;  // by first page
  };

  // Opens the segment at the end, and reads what is not a sealed page to where the image says. An
  // error: the cache is in the quarantine now.
  struct Filled {
    int64_t num_bytes = 0;
    double seconds = 0;  // that it took
  };
  DiskProgressPtr Fill(const DocumentHandle& handle,
                       const std::shared_ptr<const StoredRendition>& cache,
                       const std::shared_ptr<const CacheImage>& image,
                       const std::shared_ptr<PageFile>& last_file, Done<Filled> done);

  // The document, or its cache, is no more.
  void Delete(const DocumentHandle& handle);
  void Quarantine(const DocumentHandle& handle, int64_t rendition);

  // ---- Any thread ----

  // Has the attributes of a document written as `change` makes them then. `done` is called by
  // another thread once they are, with OK too if the document is not stored any more; or with
  // UNAVAILABLE at once after Stop.
  using ChangeAttributes = std::function<void(DocumentAttributes*)>;
  void UpdateAttributes(
      const DocumentHandle& handle, ChangeAttributes change,
      const std::function<void(const absl::Status&)>& done = [](const absl::Status&) {});

  // Whether a document of this size has room once others have left.
  bool MayFit(const CacheImage& image) const {
    return CacheFileBytes(image) <= options_.quota_bytes;
  }

  // Whether so many bytes more have room though nobody leaves.
  bool HasRoom(int64_t num_bytes) const {
    return store_->usage().bytes.total() + num_bytes <= options_.quota_bytes;
  }

  struct Counts {
    int64_t saves = 0;
    int64_t save_failures = 0;
    int64_t loads = 0;  // documents
  };
  Counts counts() const FOLIO_EXCLUDES(mutex_);
  StoreUsage usage() const { return store_->usage(); }

 private:
  DocumentKeeper(SegmentHome* home, const Tokenizer* tokenizer, const KeeperOptions& options,
                 std::unique_ptr<DocumentStore> store);

  struct Nothing {};
  // Work on a thread, and what the engine is told then.
  template <typename Result>
  void Order(TaskThreads* threads, std::function<absl::StatusOr<Result>()> work, Done<Result> done);
  void Tell(EngineCommands* commands) FOLIO_EXCLUDES(mutex_);
  // An order of the loader's, which notes its progress; the next one gets on when it ends.
  template <typename Result>
  DiskProgressPtr OrderRead(std::function<absl::StatusOr<Result>(DiskProgress*)> work,
                            Done<Result> done);
  bool Begin() FOLIO_EXCLUDES(mutex_);
  void End() FOLIO_EXCLUDES(mutex_);

  absl::StatusOr<SavedDocument> SaveNow(const SaveOrder& order);
  // With all tokens appended.
  absl::StatusOr<std::unique_ptr<DocumentWriter>> WriterFor(const SaveOrder& order);
  absl::StatusOr<StoredRendition> WriteRendition(const SaveOrder& order, DocumentWriter* writer);
  // Makes room for a document by dropping caches of others, as far as there are some.
  void DropCachesFor(const SaveOrder& order, int64_t num_bytes);
  void DropOtherCaches(const DocumentHandle& handle, int64_t number);
  // Drops the cache of the document that was used longest ago, of those that nobody uses.
  bool DropOneCache(const DocumentHandle& but);
  absl::StatusOr<LoadedDocument> LoadNow(const LoadOrder& order);
  // What keeps the stored cache of a document from being dropped.
  std::shared_ptr<void> UseOf(const DocumentHandle& handle) FOLIO_EXCLUDES(mutex_);
  bool InUse(const DocumentHandle& handle) const FOLIO_EXCLUDES(mutex_);

  SegmentHome* const home_;
  const Tokenizer* const tokenizer_;
  const KeeperOptions options_;
  const std::unique_ptr<DocumentStore> store_;
  const DiskProgressPtr reads_ = std::make_shared<DiskProgress>();  // of the loader
  const DiskProgressPtr writes_ = std::make_shared<DiskProgress>();
  Post post_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ FOLIO_GUARDED_BY(mutex_) = false;
  int64_t pending_ FOLIO_GUARDED_BY(mutex_) = 0;
  Counts counts_ FOLIO_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<void>> uses_ FOLIO_GUARDED_BY(mutex_);  // by incarnation

  // Last: they end before what they work on. Questions do not wait for what is saved.
  TaskThreads saver_;
  TaskThreads readers_;  // for the loader
  TaskThreads loader_;
  TaskThreads updater_;  // of attributes, for which calls wait: not behind what is saved
};

}  // namespace folio
