#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/store/document_files.h"
#include "engine/store/document_writer.h"
#include "engine/store/manifest.h"
#include "engine/store/segment_file.h"
#include "engine/store/store_space.h"
#include "engine/store/trash_can.h"

namespace folio {

struct StoreOptions {
  int64_t quota_bytes = std::numeric_limits<int64_t>::max();
  // Unix time in microseconds, asked for by any thread; empty: the system's.
  std::function<int64_t()> now_us;
};

struct StoreUsage {
  int64_t num_documents = 0;
  StoreBytes bytes;
  // Damaged documents and renditions found since the store was opened.
  int64_t num_quarantined = 0;
  // Files and directories that could not be moved, or not be unlinked from the trash.
  int64_t num_unremovable = 0;
};

// What a document is when its first part comes.
struct NewDocument {
  DocumentHandle handle;
  std::string name;
  std::string upload_token;
  std::string attention;
  int64_t created_us = 0;  // Unix time; 0: now
  DocumentAttributes attributes;
  Fingerprint tokenizer = {};
  std::string prompt_format;
  int64_t lead_bytes = 0;
};

// Documents on disk: their tokens, and what was computed from them. Knows files, and neither
// strategies nor backends: who uses it says what a segment means. Layout:
//   folio-store                     one line: the version of the format
//   documents/ID/manifest           what there is of a document (manifest.h)
//   documents/ID/tokens, offsets    logs of which the manifest says the end (token_log.h)
//   documents/ID/RENDITION/FILE     segments (segment_file.h)
//   trash/N, quarantine/N           what is read no more (trash_can.h)
// Order of a commit: segments and logs are synced, the directories that name them, manifest.tmp;
// then it is renamed, and its directory synced.
//
// Thread-safe. A call about one document waits for others about it that write; List, Find and usage
// never wait for the disk. Calls that name a deleted document, or one that took its id, get
// NOT_FOUND.
class DocumentStore {
 public:
  using ManifestPtr = std::shared_ptr<const Manifest>;

  // Lists the documents by their manifests. `files` outlives the store. Errors: FAILED_PRECONDITION
  // if it is no store or of another version, those of the file system. One document that cannot be
  // read does not keep the others from being there.
  static absl::StatusOr<std::unique_ptr<DocumentStore>> Open(FileSystem* files,
                                                             const StoreOptions& options);

  // Of which something was committed, in order of id.
  std::vector<ManifestPtr> List() const;
  // Errors: NOT_FOUND.
  absl::StatusOr<ManifestPtr> Find(const std::string& id) const;

  // A new document; it is stored from its first commit on. Errors: INVALID_ARGUMENT (id),
  // ALREADY_EXISTS, those of the file system.
  absl::StatusOr<std::unique_ptr<DocumentWriter>> Begin(const NewDocument& document);
  // Goes on after the last commit. Errors: NOT_FOUND; FAILED_PRECONDITION if it has a writer.
  absl::StatusOr<std::unique_ptr<DocumentWriter>> Resume(const DocumentHandle& handle);

  // All token ids, and where each token begins in the text. Errors: NOT_FOUND; DATA_LOSS if they
  // are not what was written; those of reading.
  absl::StatusOr<std::vector<int32_t>> ReadTokens(const DocumentHandle& handle) const;
  absl::StatusOr<std::vector<int64_t>> ReadOffsets(const DocumentHandle& handle) const;
  // One that the manifest names; it stays readable when the document is deleted. Errors: NOT_FOUND;
  // DATA_LOSS if it is missing or damaged; those of reading.
  absl::StatusOr<Segment> OpenSegment(const DocumentHandle& handle, int64_t rendition,
                                      const StoredSegment& segment) const;

  // Durable when they return. Errors: NOT_FOUND, INVALID_ARGUMENT (beyond the limits of a
  // manifest), those of the file system.
  absl::Status UpdateAttributes(const DocumentHandle& handle,
                                const std::function<void(DocumentAttributes*)>& change);
  absl::Status DropRendition(const DocumentHandle& handle, int64_t rendition);
  // Its files are damaged: the document has it no more, they are kept aside.
  absl::Status Quarantine(const DocumentHandle& handle, int64_t rendition);
  // The same for all of a document, whose tokens are damaged.
  absl::Status QuarantineDocument(const DocumentHandle& handle);
  // Its files go to the trash. After an error of syncing it is gone, but might be back after a
  // power cut.
  absl::Status Delete(const DocumentHandle& handle);

  // Unlinks what was deleted; may take long. Returns how many files or directories of the trash
  // went. One thread at a time.
  int64_t EmptyTrash() { return trash_.Empty(); }

  StoreUsage usage() const;

 private:
  DocumentStore(FileSystem* files, const StoreOptions& options);
  absl::Status FindAll();
  absl::StatusOr<std::shared_ptr<DocumentFiles>> Lookup(const DocumentHandle& handle) const;
  absl::Status RemoveRendition(const DocumentHandle& handle, int64_t rendition,
                               DocumentFiles::Disposal disposal);
  absl::Status RemoveDocument(const DocumentHandle& handle, DocumentFiles::Disposal disposal);
  void Forget(const std::shared_ptr<DocumentFiles>& document) FOLIO_EXCLUDES(mu_);
  std::unique_ptr<DocumentWriter> MakeWriter(const std::shared_ptr<DocumentFiles>& document);

  FileSystem* const files_;
  StoreSpace space_;
  TrashCan trash_;
  const DocumentFiles::Surroundings surroundings_;
  mutable Mutex mu_;  // never held across operations of the file system
  std::map<std::string, std::shared_ptr<DocumentFiles>> documents_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio
