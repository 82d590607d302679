#include "engine/runtime/document_directory.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/shortage.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

int64_t SystemTimeUs() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::microseconds>(
             system_clock::now().time_since_epoch())
      .count();
}

int64_t PinnedBytes(const DocumentInfo& document) {
  return document.attributes.pinned ? document.stored_bytes : 0;
}

// Whose limits a document counts to: its payer's, of whom one that was stored knows the name alone.
// Empty: nobody's.
std::string TenantOf(const DocumentInfo& document) {
  if (document.payer.tenant != nullptr) return document.payer.tenant->name;
  return std::string(DocumentOwner(document.handle.id));
}

}  // namespace

const char* DocumentStateName(DocumentState state) {
  switch (state) {
    case DocumentState::kUploading:
      return "uploading";
    case DocumentState::kPrefilling:
      return "prefilling";
    case DocumentState::kReady:
      return "ready";
    case DocumentState::kFailed:
      return "failed";
  }
  return "";
}

DocumentDirectory::DocumentDirectory(const DocumentLimits& limits)
    : limits_([&] {
        DocumentLimits filled = limits;
        if (!filled.now_us) filled.now_us = SystemTimeUs;
        return filled;
      }()) {}

absl::Status DocumentDirectory::NoDocument(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no document ", Quoted(DocumentName(id))));
}

const DocumentInfo* DocumentDirectory::Lookup(const DocumentHandle& handle) const {
  const auto it = documents_.find(handle.id);
  return it == documents_.end() || it->second.handle != handle ? nullptr : &it->second;
}

DocumentDirectory::Changing::Changing(DocumentDirectory* of, const DocumentHandle& changed)
    : directory(of), handle(changed) {
  directory->mu_.Lock();
  const auto it = directory->documents_.find(handle.id);
  if (it == directory->documents_.end() || it->second.handle != handle) return;
  document = &it->second;
  ++directory->num_changes_;
  directory->pinned_bytes_ -= PinnedBytes(*document);
  directory->Count(*document, -1);
}

DocumentDirectory::Changing::~Changing() {
  const DocumentInfo* const left = directory->Lookup(handle);
  if (left != nullptr) {
    directory->pinned_bytes_ += PinnedBytes(*left);
    directory->Count(*left, 1);
  }
  directory->mu_.Unlock();
  if (document != nullptr && directory->limits_.on_change) directory->limits_.on_change(handle);
}

void DocumentDirectory::SetState(DocumentInfo* document, DocumentState state) {
  --counts_[static_cast<size_t>(document->state)];
  ++counts_[static_cast<size_t>(state)];
  document->state = state;
  if (IsFinished(*document)) SetUsed(document);
}

absl::Status DocumentDirectory::CheckTenant(const Payer& payer) const {
  if (payer.tenant == nullptr) return absl::OkStatus();
  const auto it = held_.find(payer.tenant->name);
  const Held held = it == held_.end() ? Held{} : it->second;
  const TenantLimits& limits = payer.tenant->limits;
  if (limits.max_documents > 0 && held.documents >= limits.max_documents) {
    return LimitReached(kDocuments, LimitOf::kTenant,
                        absl::StrCat("the tenant has its limit of ", limits.max_documents,
                                     " documents; delete some"));
  }
  if (limits.max_unfinished_uploads > 0 &&
      held.unfinished_uploads >= limits.max_unfinished_uploads) {
    return LimitReached(kUnfinishedUploads, LimitOf::kTenant,
                        absl::StrCat("the tenant has its limit of ", limits.max_unfinished_uploads,
                                     " unfinished uploads; finish or delete some"));
  }
  if (limits.max_stored_bytes > 0 && held.stored_bytes >= limits.max_stored_bytes) {
    return LimitReached(
        kStoredBytes, LimitOf::kTenant,
        absl::StrCat("documents of the tenant take ", held.stored_bytes,
                     " bytes on disk, its limit is ", limits.max_stored_bytes, "; delete some"));
  }
  return absl::OkStatus();
}

int64_t DocumentDirectory::DiskBytes(const DocumentInfo& document) const {
  return std::max({document.stored_bytes, document.saving_bytes,
                   document.known_tokens * limits_.stored_bytes_per_token});
}

absl::Status DocumentDirectory::CheckDisk(const DocumentInfo& document, int64_t num_bytes) {
  const TenantPtr& tenant = document.payer.tenant;
  const int64_t most = tenant == nullptr ? 0 : tenant->limits.max_stored_bytes;
  const Held* const others = HeldBy(document);
  if (most == 0 || others == nullptr || num_bytes <= most - others->stored_bytes) {
    return absl::OkStatus();
  }
  return LimitReached(
      kStoredBytes, LimitOf::kTenant,
      absl::StrCat("document ", Quoted(DocumentName(document.handle.id)), " would take ", num_bytes,
                   " bytes on disk and others of the tenant take ", others->stored_bytes,
                   ", its limit is ", most, "; delete some"));
}

void DocumentDirectory::Count(const DocumentInfo& document, int times) {
  Held* const held = HeldBy(document);
  if (held == nullptr) return;
  if (document.state == DocumentState::kUploading) held->unfinished_uploads += times;
  held->stored_bytes += times * DiskBytes(document);
}

DocumentDirectory::Held* DocumentDirectory::HeldBy(const DocumentInfo& document) {
  const auto it = held_.find(TenantOf(document));
  return it == held_.end() ? nullptr : &it->second;
}

// What may throw comes first.
void DocumentDirectory::Add(DocumentInfo document) {
  const std::string tenant = TenantOf(document);
  Held* const held = tenant.empty() ? nullptr : &held_[tenant];
  const auto [it, is_new] = documents_.emplace(document.handle.id, std::move(document));
  const DocumentInfo& added = it->second;
  ++counts_[static_cast<size_t>(added.state)];
  ++num_changes_;
  if (held == nullptr) return;
  ++held->documents;
  Count(added, 1);
}

absl::StatusOr<DocumentInfo> DocumentDirectory::Create(
    const std::string& id, const AttentionSpec& attention,
    std::shared_ptr<DocumentAttachment> attachment, const Payer& payer) {
  MutexLock lock(&mu_);
  if (documents_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("document ", Quoted(DocumentName(id)), " exists"));
  }
  if (static_cast<int64_t>(documents_.size()) >= limits_.max_documents) {
    return LimitReached(kDocuments, LimitOf::kAll,
                        absl::StrCat("the server holds its limit of ", limits_.max_documents,
                                     " documents; delete some or raise --max-documents"));
  }
  FOLIO_RETURN_IF_ERROR(CheckTenant(payer));
  DocumentInfo document;
  document.handle = {id, next_incarnation_};
  document.attention = attention;
  document.attachment = std::move(attachment);
  document.payer = payer;
  Add(document);
  ++next_incarnation_;
  return document;
}

std::optional<DocumentInfo> DocumentDirectory::Open(const std::string& id, const Payer& payer) {
  MutexLock lock(&mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return std::nullopt;
  DocumentInfo& document = it->second;
  const bool is_own = payer.tenant != nullptr && payer.tenant->name == TenantOf(document);
  if (is_own) document.payer = payer;
  return document;
}

void DocumentDirectory::AddStored(const Stored& stored) {
  MutexLock lock(&mu_);
  DocumentInfo document;
  document.handle = stored.handle;
  document.attention = stored.attention;
  document.attachment = stored.attachment;
  document.state = stored.whole ? DocumentState::kReady : DocumentState::kUploading;
  if (!stored.error.ok()) document.state = DocumentState::kFailed;
  document.error = stored.error;
  document.known_tokens = stored.num_tokens;
  document.prefilled_tokens = stored.cached_tokens;
  document.saved = stored.whole;
  document.stored_bytes = stored.stored_bytes;
  document.saved_text_bytes = stored.text_bytes;
  document.attributes = stored.attributes;
  document.stored_use_us = stored.attributes.last_used_us;
  document.payer = stored.payer;
  first_expiry_us_ = std::min(first_expiry_us_, stored.attributes.expires_at_us());
  next_incarnation_ = std::max(next_incarnation_, stored.handle.incarnation + 1);
  pinned_bytes_ += PinnedBytes(document);
  Add(std::move(document));
}

absl::Status DocumentDirectory::BeginSaving(const DocumentHandle& handle, int64_t num_bytes) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return absl::OkStatus();
  if (document->attributes.pinned) {
    FOLIO_RETURN_IF_ERROR(CheckPinned(handle.id, pinned_bytes_, num_bytes));
  }
  FOLIO_RETURN_IF_ERROR(CheckDisk(*document, num_bytes));
  document->saving_bytes = num_bytes;
  return absl::OkStatus();
}

void DocumentDirectory::SetSaved(const DocumentHandle& handle,
                                 const absl::StatusOr<int64_t>& stored_bytes) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return;
  document->saving_bytes = 0;
  document->save_error = stored_bytes.status();
  if (!stored_bytes.ok()) return;
  document->saved = true;
  document->stored_bytes = *stored_bytes;
  document->stored_use_us = document->attributes.last_used_us;
}

void DocumentDirectory::SetSavedPart(const DocumentHandle& handle, int64_t text_bytes,
                                     const absl::StatusOr<int64_t>& stored_bytes) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return;
  document->saving_bytes = 0;
  if (!stored_bytes.ok()) return;
  document->saved_text_bytes = text_bytes;
  document->stored_bytes = *stored_bytes;
}

void DocumentDirectory::ForgetSaveError(const DocumentHandle& handle) {
  const Changing change(this, handle);
  if (change.document != nullptr) change.document->save_error = absl::OkStatus();
}

absl::Status DocumentDirectory::AddTokens(const DocumentHandle& handle, int64_t count) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckUploading(*document));
  FOLIO_RETURN_IF_ERROR(
      CheckLength("the document", document->known_tokens + count, limits_.max_tokens));
  FOLIO_RETURN_IF_ERROR(
      CheckDisk(*document, (document->known_tokens + count) * limits_.stored_bytes_per_token));
  document->known_tokens += count;
  return absl::OkStatus();
}

absl::Status DocumentDirectory::FinishUpload(const DocumentHandle& handle) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckUploading(*document));
  if (document->known_tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("document ", Quoted(DocumentName(handle.id)), " is empty"));
  }
  SetState(document, DocumentState::kPrefilling);
  return absl::OkStatus();
}

absl::Status DocumentDirectory::Fail(const DocumentHandle& handle, absl::Status error) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckAlive(*document));
  SetState(document, DocumentState::kFailed);
  document->error = std::move(error);
  document->prefilled_tokens = document->summary_bytes = 0;
  document->device_kv_bytes = document->host_kv_bytes = document->disk_kv_bytes = 0;
  return absl::OkStatus();
}

absl::Status DocumentDirectory::Remove(const DocumentHandle& handle) {
  const Changing change(this, handle);
  const DocumentInfo* const document = change.document;
  if (document == nullptr) return NoDocument(handle.id);
  --counts_[static_cast<size_t>(document->state)];
  if (Held* held = HeldBy(*document); held != nullptr && --held->documents == 0) {
    held_.erase(TenantOf(*document));
  }
  documents_.erase(handle.id);
  return absl::OkStatus();
}

std::optional<DocumentState> DocumentDirectory::SetProgress(const DocumentHandle& handle,
                                                            const Progress& progress) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr || document->state == DocumentState::kFailed) return std::nullopt;
  document->prefilled_tokens = progress.prefilled_tokens;
  document->device_kv_bytes = progress.device_kv_bytes;
  document->host_kv_bytes = progress.host_kv_bytes;
  document->disk_kv_bytes = progress.disk_kv_bytes;
  document->summary_bytes = progress.summary_bytes;
  if (document->state == DocumentState::kPrefilling &&
      document->prefilled_tokens == document->known_tokens) {
    SetState(document, DocumentState::kReady);
  }
  return document->state;
}

void DocumentDirectory::SetShortOfRoom(const DocumentHandle& handle, bool short_of_room) {
  const Changing change(this, handle);
  if (change.document != nullptr) change.document->short_of_room = short_of_room;
}

std::optional<DocumentInfo> DocumentDirectory::Find(const std::string& id) const {
  MutexLock lock(&mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return std::nullopt;
  return it->second;
}

absl::StatusOr<DocumentInfo> DocumentDirectory::Get(const DocumentHandle& handle) const {
  MutexLock lock(&mu_);
  const DocumentInfo* document = Lookup(handle);
  if (document == nullptr) return NoDocument(handle.id);
  return *document;
}

std::vector<DocumentInfo> DocumentDirectory::List(const std::string& after, size_t count) const {
  MutexLock lock(&mu_);
  std::vector<DocumentInfo> list;
  for (auto it = documents_.upper_bound(after); it != documents_.end() && list.size() < count;
       ++it) {
    list.push_back(it->second);
  }
  return list;
}

DocumentCounts DocumentDirectory::Count() const {
  MutexLock lock(&mu_);
  return counts_;
}

std::map<std::string, int> DocumentDirectory::CountByTenant() const {
  std::map<std::string, int> counts;
  MutexLock lock(&mu_);
  for (const auto& [tenant, held] : held_) counts.emplace(tenant, held.documents);
  return counts;
}

int64_t DocumentDirectory::num_changes() const {
  MutexLock lock(&mu_);
  return num_changes_;
}

}  // namespace folio
