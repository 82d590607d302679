#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/store/file_system.h"
#include "engine/store/manifest.h"
#include "engine/store/store_space.h"
#include "engine/store/token_log.h"
#include "engine/store/trash_can.h"
#include "engine/types/request.h"

namespace folio {

// The directory of all documents.
inline constexpr char kDocumentsDirectory[] = "documents";

// The directory of one document, and what lies in it: changes of its manifest come one after the
// other and are durable when they return; what no manifest names any more goes to the trash. Shared
// by the store and the document's writer. Thread-safe.
class DocumentFiles {
 public:
  // What all documents of a store use; outlives them.
  struct Surroundings {
    FileSystem* files;
    StoreSpace* space;
    TrashCan* trash;
    std::function<int64_t()> now_us;
  };
  using Change = std::function<absl::Status(Manifest*)>;
  enum class Disposal : uint8_t { kTrash, kQuarantine };

  // One that a first commit will complete, and one that was found.
  DocumentFiles(const Surroundings& surroundings, Manifest first);
  DocumentFiles(const Surroundings& surroundings, ManifestFile found);

  const DocumentHandle& handle() const { return handle_; }
  const std::string& directory() const { return directory_; }
  std::string DirectoryOf(int64_t rendition) const;
  // As committed last; null before the first time.
  std::shared_ptr<const Manifest> manifest() const;

  // Changes the manifest; what it names no more is disposed of. Durable when it returns. Errors:
  // NOT_FOUND if the document is gone, those of `change` and of the file system. After one of these
  // the manifest on disk is the old or the new one; manifest() says which is there now.
  absl::Status Update(const Change& change, Disposal disposal = Disposal::kTrash)
      FOLIO_EXCLUDES(io_mu_);
  // Moves all files away; durable when it returns OK. The document is gone unless they are still in
  // their place. Errors: NOT_FOUND, those of the file system.
  absl::Status Remove(Disposal disposal) FOLIO_EXCLUDES(io_mu_);
  bool is_gone() const FOLIO_EXCLUDES(io_mu_);

  // ---- For the one writer ----

  // Of a new document.
  absl::Status MakeDirectory() FOLIO_EXCLUDES(io_mu_);
  // FAILED_PRECONDITION if there is one, NOT_FOUND if the document is gone.
  absl::Status BeginWriting() FOLIO_EXCLUDES(io_mu_);
  // Discards what was written and not committed; and the document if nothing was. True: it is gone.
  bool EndWriting() FOLIO_EXCLUDES(io_mu_);

  absl::StatusOr<TokenLog> OpenTokenLog() FOLIO_EXCLUDES(io_mu_);
  // Bytes at the end of the logs that no manifest covers.
  absl::Status TakeLogBytes(int64_t bytes) FOLIO_EXCLUDES(io_mu_);

  // The rendition of a model and an attention, or a new one.
  absl::StatusOr<int64_t> RenditionOf(const Fingerprint& model, const std::string& attention)
      FOLIO_EXCLUDES(io_mu_);
  struct Draft {
    StoredSegment segment;
    SegmentWriter writer;
  };
  // With `data` the segment is made of a file that is there.
  absl::StatusOr<Draft> CreateSegment(int64_t rendition, const SegmentShape& shape,
                                      const ContentKey& key, const SegmentData* data = nullptr)
      FOLIO_EXCLUDES(io_mu_);
  // It was finished, and a commit may name it. Errors: NOT_FOUND if its rendition was dropped.
  absl::Status KeepSegment(int64_t rendition, const StoredSegment& segment) FOLIO_EXCLUDES(io_mu_);
  void DiscardSegment(int64_t rendition, const StoredSegment& segment) FOLIO_EXCLUDES(io_mu_);

  struct Progress {
    StoredState state;
    int64_t text_bytes;
    TokenLogEnds logs;
    // Each with all of its segments.
    std::vector<StoredRendition> renditions;
  };
  // Refused: what is asked for cannot be, and nothing was tried.
  absl::Status Commit(const Progress& progress, bool* refused) FOLIO_EXCLUDES(io_mu_);

 private:
  // A rendition, and a file of it.
  using SegmentName = std::pair<int64_t, int64_t>;
  struct Fresh {
    StoredSegment segment;
    bool finished = false;
  };
  struct Doomed {
    std::string path;
    int64_t bytes;
    Disposal disposal;
  };

  // The manifest as it would be, and its bytes.
  absl::StatusOr<std::pair<Manifest, std::string>> Prepare(const Change& change)
      FOLIO_REQUIRES(io_mu_);
  absl::Status Publish(std::pair<Manifest, std::string> next, Disposal disposal)
      FOLIO_REQUIRES(io_mu_);
  absl::Status CheckHere() const FOLIO_REQUIRES(io_mu_);
  absl::Status SetRendition(const StoredRendition& next, Manifest* manifest) const
      FOLIO_REQUIRES(io_mu_);
  bool HasRendition(int64_t number) const FOLIO_REQUIRES(io_mu_);
  absl::Status SyncNames(const Manifest& next) FOLIO_REQUIRES(io_mu_);
  void Adopt(Manifest next, int64_t num_bytes, Disposal disposal) FOLIO_REQUIRES(io_mu_);
  void Doom(const Manifest& old, const Manifest& next, Disposal disposal) FOLIO_REQUIRES(io_mu_);
  void DisposeOfDoomed() FOLIO_REQUIRES(io_mu_);
  int64_t ForgetFresh(int64_t rendition) FOLIO_REQUIRES(io_mu_);
  int64_t BytesHeld() const FOLIO_REQUIRES(io_mu_);
  std::string PathOf(const SegmentName& name) const;

  const Surroundings use_;
  const DocumentHandle handle_;
  const std::string directory_;

  mutable Mutex io_mu_;  // held across operations of the file system
  bool gone_ FOLIO_GUARDED_BY(io_mu_) = false;
  bool has_writer_ FOLIO_GUARDED_BY(io_mu_) = false;
  // What the first commit completes.
  Manifest first_ FOLIO_GUARDED_BY(io_mu_);
  int64_t manifest_bytes_ FOLIO_GUARDED_BY(io_mu_) = 0;
  int64_t next_number_ FOLIO_GUARDED_BY(io_mu_) = 0;
  int64_t log_bytes_ FOLIO_GUARDED_BY(io_mu_) = 0;  // TakeLogBytes
  std::map<SegmentName, Fresh> fresh_ FOLIO_GUARDED_BY(io_mu_);
  std::map<int64_t, StoredRendition> fresh_renditions_ FOLIO_GUARDED_BY(io_mu_);
  bool has_new_names_ FOLIO_GUARDED_BY(io_mu_) = true;  // in directory_, not synced
  // Not named by the manifest, which may not be durable yet.
  std::vector<Doomed> doomed_ FOLIO_GUARDED_BY(io_mu_);

  mutable Mutex mu_;
  std::shared_ptr<const Manifest> manifest_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio
