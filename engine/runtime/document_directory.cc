#include "engine/runtime/document_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"

namespace folio {
namespace {

absl::Status NoDocument(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no document ", Quoted(id)));
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

const DocumentInfo* DocumentDirectory::Lookup(const DocumentHandle& handle) const {
  const auto it = documents_.find(handle.id);
  return it == documents_.end() || it->second.handle != handle ? nullptr : &it->second;
}

DocumentInfo* DocumentDirectory::Change(const DocumentHandle& handle) {
  const auto it = documents_.find(handle.id);
  if (it == documents_.end() || it->second.handle != handle) return nullptr;
  ++num_changes_;
  return &it->second;
}

void DocumentDirectory::SetState(DocumentInfo* document, DocumentState state) {
  --counts_[static_cast<size_t>(document->state)];
  ++counts_[static_cast<size_t>(state)];
  document->state = state;
}

absl::StatusOr<DocumentInfo> DocumentDirectory::Create(
    const std::string& id, const AttentionSpec& attention,
    std::shared_ptr<DocumentAttachment> attachment) {
  MutexLock lock(&mu_);
  if (documents_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("document ", Quoted(id), " exists"));
  }
  if (static_cast<int64_t>(documents_.size()) >= limits_.max_documents) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server holds its limit of ", limits_.max_documents,
                     " documents; delete some or raise --max-documents"));
  }
  DocumentInfo document;
  document.handle = {id, next_incarnation_};
  document.attention = attention;
  document.attachment = std::move(attachment);
  documents_.emplace(id, document);
  ++next_incarnation_;
  ++counts_[static_cast<size_t>(document.state)];
  ++num_changes_;
  return document;
}

void DocumentDirectory::AddStored(const Stored& stored) {
  MutexLock lock(&mu_);
  DocumentInfo document;
  document.handle = stored.handle;
  document.attention = stored.attention;
  document.attachment = stored.attachment;
  document.state = stored.error.ok() ? DocumentState::kReady : DocumentState::kFailed;
  document.error = stored.error;
  document.known_tokens = stored.num_tokens;
  document.prefilled_tokens = stored.cached_tokens;
  document.saved = true;
  document.stored_bytes = stored.stored_bytes;
  ++counts_[static_cast<size_t>(document.state)];
  ++num_changes_;
  next_incarnation_ = std::max(next_incarnation_, stored.handle.incarnation + 1);
  documents_.emplace(stored.handle.id, std::move(document));
}

void DocumentDirectory::SetSaved(const DocumentHandle& handle,
                                 const absl::StatusOr<int64_t>& stored_bytes) {
  MutexLock lock(&mu_);
  DocumentInfo* document = Change(handle);
  if (document == nullptr) return;
  document->save_error = stored_bytes.status();
  if (!stored_bytes.ok()) return;
  document->saved = true;
  document->stored_bytes = *stored_bytes;
}

void DocumentDirectory::ForgetSaveError(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  if (DocumentInfo* document = Change(handle)) document->save_error = absl::OkStatus();
}

absl::Status DocumentDirectory::AddTokens(const DocumentHandle& handle, int64_t count) {
  MutexLock lock(&mu_);
  DocumentInfo* document = Change(handle);
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckUploading(*document));
  FOLIO_RETURN_IF_ERROR(
      CheckLength("the document", document->known_tokens + count, limits_.max_tokens));
  document->known_tokens += count;
  return absl::OkStatus();
}

absl::Status DocumentDirectory::FinishUpload(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  DocumentInfo* document = Change(handle);
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckUploading(*document));
  if (document->known_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("document ", Quoted(handle.id), " is empty"));
  }
  SetState(document, DocumentState::kPrefilling);
  return absl::OkStatus();
}

absl::Status DocumentDirectory::Fail(const DocumentHandle& handle, absl::Status error) {
  MutexLock lock(&mu_);
  DocumentInfo* document = Change(handle);
  if (document == nullptr) return NoDocument(handle.id);
  FOLIO_RETURN_IF_ERROR(CheckAlive(*document));
  SetState(document, DocumentState::kFailed);
  document->error = std::move(error);
  document->prefilled_tokens = document->kv_bytes = document->summary_bytes = 0;
  return absl::OkStatus();
}

absl::Status DocumentDirectory::Remove(const DocumentHandle& handle) {
  MutexLock lock(&mu_);
  const DocumentInfo* document = Change(handle);
  if (document == nullptr) return NoDocument(handle.id);
  --counts_[static_cast<size_t>(document->state)];
  documents_.erase(handle.id);
  return absl::OkStatus();
}

std::optional<DocumentState> DocumentDirectory::SetProgress(const DocumentHandle& handle,
                                                            const Progress& progress) {
  MutexLock lock(&mu_);
  DocumentInfo* document = Change(handle);
  if (document == nullptr || document->state == DocumentState::kFailed) return std::nullopt;
  document->prefilled_tokens = progress.prefilled_tokens;
  document->kv_bytes = progress.kv_bytes;
  document->summary_bytes = progress.summary_bytes;
  if (document->state == DocumentState::kPrefilling &&
      document->prefilled_tokens == document->known_tokens) {
    SetState(document, DocumentState::kReady);
  }
  return document->state;
}

void DocumentDirectory::SetShortOfRoom(const DocumentHandle& handle, bool short_of_room) {
  MutexLock lock(&mu_);
  if (DocumentInfo* document = Change(handle)) document->short_of_room = short_of_room;
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

int64_t DocumentDirectory::num_changes() const {
  MutexLock lock(&mu_);
  return num_changes_;
}

}  // namespace folio
