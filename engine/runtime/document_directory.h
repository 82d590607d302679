#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/runtime/document_info.h"

namespace folio {

struct DocumentLimits {
  int max_documents = 1000;
  int64_t max_tokens = int64_t{1} << 30;
  // Unix time in microseconds; empty: the system's.
  std::function<int64_t()> now_us = {};
  // Of pinned documents together, on disk.
  int64_t max_pinned_bytes = std::numeric_limits<int64_t>::max();
  // What each token of a document takes on disk at least; 0: documents are not stored.
  int64_t stored_bytes_per_token = 0;
  // Called after each change of a document that is there, by whoever has made it; returns at once.
  std::function<void(const DocumentHandle&)> on_change = {};
};

// Which documents there are, and the one state of each. The front door changes it when it accepts a
// call, the engine thread when a prefill goes on or ends. A change touches one document, however
// many there are. Thread-safe.
class DocumentDirectory {
 public:
  explicit DocumentDirectory(const DocumentLimits& limits);

  // A new document, in state kUploading. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED when there are
  // too many, in all or of the tenant, or those of the tenant take too much of the disk.
  absl::StatusOr<DocumentInfo> Create(const std::string& id, const AttentionSpec& attention,
                                      std::shared_ptr<DocumentAttachment> attachment,
                                      const Payer& payer = {});
  // The document of this id, if there is one. If it is the payer's own he pays for it as he is now.
  std::optional<DocumentInfo> Open(const std::string& id, const Payer& payer);
  // `count` more tokens will be prefilled. Errors: NOT_FOUND, INVALID_ARGUMENT beyond the limit,
  // RESOURCE_EXHAUSTED where documents of the tenant would take too much of the disk,
  // FAILED_PRECONDITION if the upload is finished or has failed.
  absl::Status AddTokens(const DocumentHandle& handle, int64_t count);
  // No more tokens will be added: kPrefilling. Errors: as AddTokens, INVALID_ARGUMENT if there are
  // none.
  absl::Status FinishUpload(const DocumentHandle& handle);
  // Errors: NOT_FOUND, FAILED_PRECONDITION if it has failed already.
  absl::Status Fail(const DocumentHandle& handle, absl::Status error);
  // Errors: NOT_FOUND.
  absl::Status Remove(const DocumentHandle& handle);

  struct Progress {
    int64_t prefilled_tokens = 0;
    int64_t device_kv_bytes = 0;
    int64_t host_kv_bytes = 0;
    int64_t disk_kv_bytes = 0;
    int64_t summary_bytes = 0;
  };
  // The prefill has come so far; kReady once that is all. Returns the state then, nullopt if the
  // document is gone or has failed.
  std::optional<DocumentState> SetProgress(const DocumentHandle& handle, const Progress& progress);

  // A document that was stored by an earlier process: kReady, kUploading if its text is not whole,
  // or kFailed with the error. No limit holds for it. REQUIRES: its id is not taken.
  struct Stored {
    DocumentHandle handle;
    AttentionSpec attention;
    std::shared_ptr<DocumentAttachment> attachment;
    int64_t num_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t stored_bytes = 0;
    int64_t text_bytes = 0;
    bool whole = true;  // its text
    DocumentAttributes attributes;
    absl::Status error;
    Payer payer = {};
  };
  void AddStored(const Stored& stored);
  // The document is about to be saved, in so many bytes on disk, which count to the limits from now
  // on until it is; if it is there. RESOURCE_EXHAUSTED if it may not take so many, beside the
  // others of its tenant, or beside those that are pinned if it is one of them.
  absl::Status BeginSaving(const DocumentHandle& handle, int64_t num_bytes);
  // The document is on disk in so many bytes, or could not be written; if it is there.
  void SetSaved(const DocumentHandle& handle, const absl::StatusOr<int64_t>& stored_bytes);
  // The same of a part of it, with so many bytes of its text.
  void SetSavedPart(const DocumentHandle& handle, int64_t text_bytes,
                    const absl::StatusOr<int64_t>& stored_bytes);

  // Changes what the owner of a document says of it, which counts as a use. Returns what it is
  // then. Errors, and nothing is changed: NOT_FOUND; RESOURCE_EXHAUSTED if it may not be pinned,
  // beside the others that are.
  absl::StatusOr<DocumentInfo> UpdateAttributes(
      const DocumentHandle& handle, absl::FunctionRef<void(DocumentAttributes*)> update);
  // Makes `attributes` those of the document, if it is there. Of several writers to disk who write
  // what this gives, the last one has written what is true.
  void CopyAttributes(const DocumentHandle& handle, DocumentAttributes* attributes) const;
  // A question is asked about it. True if its time of use on disk, by which it expires after a
  // restart, should follow: not for each question, but often enough for its TTL.
  bool Touch(const DocumentHandle& handle);
  // Documents, ready or failed, whose TTL is over.
  std::vector<DocumentHandle> Expired() const;

  // It is tried again.
  void ForgetSaveError(const DocumentHandle& handle);

  // DocumentInfo::short_of_room, if the document is there.
  void SetShortOfRoom(const DocumentHandle& handle, bool short_of_room);

  // nullopt if there is none.
  std::optional<DocumentInfo> Find(const std::string& id) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<DocumentInfo> Get(const DocumentHandle& handle) const;
  // Up to `count` documents with ids after `after`, in order of id.
  std::vector<DocumentInfo> List(const std::string& after, size_t count) const;
  DocumentCounts Count() const;
  // Of the tenants that have any.
  std::map<std::string, int> CountByTenant() const;

  // Changes of single documents so far.
  int64_t num_changes() const;

 private:
  // Holds the mutex while a document is changed; tells of the change once it is free.
  struct FOLIO_THREAD_SAFETY(scoped_lockable) Changing {
    Changing(DocumentDirectory* of, const DocumentHandle& changed)
        FOLIO_THREAD_SAFETY(acquire_capability(of->mu_));
    ~Changing() FOLIO_THREAD_SAFETY(release_capability());
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;

    DocumentDirectory* const directory;
    const DocumentHandle& handle;      // of the caller's
    DocumentInfo* document = nullptr;  // null: there is no such one
  };
  // What documents of one tenant hold.
  struct Held {
    int documents = 0;
    int unfinished_uploads = 0;
    int64_t stored_bytes = 0;  // DiskBytes
  };
  // What may change of a document that its tenant holds: adds it, or with -1 takes it away.
  void Count(const DocumentInfo& document, int times) FOLIO_REQUIRES(mu_);
  // On disk, or soon.
  int64_t DiskBytes(const DocumentInfo& document) const;
  absl::Status CheckTenant(const Payer& payer) const FOLIO_REQUIRES(mu_);
  // Whether a document that is being changed may have so many bytes on disk.
  absl::Status CheckDisk(const DocumentInfo& document, int64_t num_bytes) FOLIO_REQUIRES(mu_);
  // Of the tenant of a document that is there; null: it is nobody's.
  Held* HeldBy(const DocumentInfo& document) FOLIO_REQUIRES(mu_);
  void Add(DocumentInfo document) FOLIO_REQUIRES(mu_);
  absl::Status CheckPinned(const std::string& id, int64_t pinned_bytes, int64_t num_bytes) const;
  const DocumentInfo* Lookup(const DocumentHandle& handle) const FOLIO_REQUIRES(mu_);
  static absl::Status NoDocument(const std::string& id);
  static bool IsFinished(const DocumentInfo& document) {
    return document.state == DocumentState::kReady || document.state == DocumentState::kFailed;
  }
  void SetState(DocumentInfo* document, DocumentState state) FOLIO_REQUIRES(mu_);
  void SetUsed(DocumentInfo* document) FOLIO_REQUIRES(mu_);

  const DocumentLimits limits_;
  mutable Mutex mu_;
  std::map<std::string, DocumentInfo> documents_ FOLIO_GUARDED_BY(mu_);
  std::map<std::string, Held> held_ FOLIO_GUARDED_BY(mu_);  // by tenant
  DocumentCounts counts_ FOLIO_GUARDED_BY(mu_) = {};
  uint64_t next_incarnation_ FOLIO_GUARDED_BY(mu_) = 1;
  int64_t num_changes_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t pinned_bytes_ FOLIO_GUARDED_BY(mu_) = 0;  // on disk
  // No document expires before; uses only make it later.
  mutable int64_t first_expiry_us_ FOLIO_GUARDED_BY(mu_) = DocumentAttributes::kNever;
};

}  // namespace folio
