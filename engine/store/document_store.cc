#include "engine/store/document_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/store/document_id.h"
#include "engine/store/store_opening.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

int64_t SystemNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

absl::Status NoDocument(const std::string& id) {
  return absl::NotFoundError(
      absl::StrCat("there is no stored document ", Quoted(DocumentName(id))));
}

}  // namespace

DocumentStore::DocumentStore(FileSystem* files, const StoreOptions& options)
    : files_(files),
      space_(options.quota_bytes),
      trash_(files, &space_),
      surroundings_{files, &space_, &trash_, options.now_us ? options.now_us : SystemNow} {}

absl::StatusOr<std::unique_ptr<DocumentStore>> DocumentStore::Open(FileSystem* files,
                                                                   const StoreOptions& options) {
  FOLIO_RETURN_IF_ERROR(CheckStoreFormat(files));
  std::unique_ptr<DocumentStore> store(new DocumentStore(files, options));
  FOLIO_RETURN_IF_ERROR(store->FindAll());
  return store;
}

absl::Status DocumentStore::FindAll() {
  FOLIO_RETURN_IF_ERROR(trash_.Open());
  FOLIO_RETURN_IF_ERROR(files_->MakeDirectory(kDocumentsDirectory));
  FOLIO_RETURN_IF_ERROR(files_->SyncDirectory(""));
  FOLIO_ASSIGN_OR_RETURN(const auto found, FindDocuments(surroundings_));
  const MutexLock lock(&mu_);
  for (const auto& document : found) documents_[document->handle().id] = document;
  return absl::OkStatus();
}

std::vector<DocumentStore::ManifestPtr> DocumentStore::List() const {
  std::vector<ManifestPtr> manifests;
  const MutexLock lock(&mu_);
  manifests.reserve(documents_.size());
  for (const auto& one : documents_) {
    if (ManifestPtr manifest = one.second->manifest(); manifest != nullptr) {
      manifests.push_back(std::move(manifest));
    }
  }
  return manifests;
}

absl::StatusOr<DocumentStore::ManifestPtr> DocumentStore::Find(const std::string& id) const {
  const MutexLock lock(&mu_);
  const auto found = documents_.find(id);
  ManifestPtr manifest = found == documents_.end() ? nullptr : found->second->manifest();
  if (manifest == nullptr) return NoDocument(id);
  return manifest;
}

absl::StatusOr<std::shared_ptr<DocumentFiles>> DocumentStore::Lookup(
    const DocumentHandle& handle) const {
  const MutexLock lock(&mu_);
  const auto found = documents_.find(handle.id);
  if (found == documents_.end() || !(found->second->handle() == handle)) {
    return NoDocument(handle.id);
  }
  return found->second;
}

void DocumentStore::Forget(const std::shared_ptr<DocumentFiles>& document) {
  const MutexLock lock(&mu_);
  const auto found = documents_.find(document->handle().id);
  if (found != documents_.end() && found->second == document) documents_.erase(found);
}

// ---- Writing ----

std::unique_ptr<DocumentWriter> DocumentStore::MakeWriter(
    const std::shared_ptr<DocumentFiles>& document) {
  return std::make_unique<DocumentWriter>(document, [this, document] { Forget(document); });
}

absl::StatusOr<std::unique_ptr<DocumentWriter>> DocumentStore::Begin(const NewDocument& document) {
  FOLIO_RETURN_IF_ERROR(CheckDocumentId(document.handle.id));
  Manifest first;
  first.id = document.handle.id;
  first.incarnation = document.handle.incarnation;
  first.name = document.name;
  first.upload_token = document.upload_token;
  first.attention = document.attention;
  first.created_us = document.created_us != 0 ? document.created_us : surroundings_.now_us();
  first.attributes = document.attributes;
  first.tokenizer = document.tokenizer;
  first.prompt_format = document.prompt_format;
  first.lead_bytes = document.lead_bytes;
  FOLIO_RETURN_IF_ERROR(EncodeManifest(first).status());
  const auto made = std::make_shared<DocumentFiles>(surroundings_, std::move(first));
  FOLIO_RETURN_IF_ERROR(made->BeginWriting());
  {
    const MutexLock lock(&mu_);
    if (!documents_.emplace(document.handle.id, made).second) {
      return absl::AlreadyExistsError(absl::StrCat(
          "document ", Quoted(DocumentName(document.handle.id)), " is stored already"));
    }
  }
  if (const absl::Status status = made->MakeDirectory(); !status.ok()) {
    Forget(made);
    return status;
  }
  return MakeWriter(made);
}

absl::StatusOr<std::unique_ptr<DocumentWriter>> DocumentStore::Resume(
    const DocumentHandle& handle) {
  FOLIO_ASSIGN_OR_RETURN(const std::shared_ptr<DocumentFiles> document, Lookup(handle));
  FOLIO_RETURN_IF_ERROR(document->BeginWriting());
  return MakeWriter(document);
}

// ---- Reading ----

absl::StatusOr<std::vector<int32_t>> DocumentStore::ReadTokens(const DocumentHandle& handle) const {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  const ManifestPtr manifest = document->manifest();
  if (manifest == nullptr) return NoDocument(handle.id);
  auto tokens = ReadTokenIds(files_, document->directory(), manifest->logs.tokens);
  // Deleted meanwhile: what was read is no damage of it.
  if (!tokens.ok()) FOLIO_RETURN_IF_ERROR(Lookup(handle).status());
  return tokens;
}

absl::StatusOr<std::vector<int64_t>> DocumentStore::ReadOffsets(
    const DocumentHandle& handle) const {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  const ManifestPtr manifest = document->manifest();
  if (manifest == nullptr) return NoDocument(handle.id);
  auto offsets = ReadTokenOffsets(files_, document->directory(), manifest->logs.offsets);
  if (!offsets.ok()) FOLIO_RETURN_IF_ERROR(Lookup(handle).status());
  return offsets;
}

absl::StatusOr<Segment> DocumentStore::OpenSegment(const DocumentHandle& handle, int64_t rendition,
                                                   const StoredSegment& segment) const {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  const auto is_named = [&]() {
    const ManifestPtr manifest = document->manifest();
    const StoredRendition* stored =
        manifest == nullptr ? nullptr : manifest->FindRendition(rendition);
    return stored != nullptr && std::find(stored->segments.begin(), stored->segments.end(),
                                          segment) != stored->segments.end();
  };
  const std::string path = absl::StrCat(document->DirectoryOf(rendition), "/", segment.file);
  auto opened = Segment::Open(files_, path, segment.key, segment.shape);
  if (opened.ok()) return opened;
  FOLIO_RETURN_IF_ERROR(Lookup(handle).status());
  if (!is_named()) {
    return absl::NotFoundError(absl::StrCat("rendition ", rendition, " of document ",
                                            Quoted(DocumentName(handle.id)),
                                            " has no such segment"));
  }
  if (absl::IsNotFound(opened.status())) {
    return absl::DataLossError(absl::StrCat(path, " is missing"));
  }
  return opened;
}

// ---- Changes ----

absl::Status DocumentStore::UpdateAttributes(
    const DocumentHandle& handle, const std::function<void(DocumentAttributes*)>& change) {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  if (document->manifest() == nullptr) return NoDocument(handle.id);
  return document->Update([&](Manifest* manifest) {
    change(&manifest->attributes);
    return absl::OkStatus();
  });
}

absl::Status DocumentStore::RemoveRendition(const DocumentHandle& handle, int64_t rendition,
                                            DocumentFiles::Disposal disposal) {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  if (document->manifest() == nullptr) return NoDocument(handle.id);
  const auto remove = [&](Manifest* manifest) -> absl::Status {
    const size_t removed = std::erase_if(manifest->renditions,
                                         [&](const auto& one) { return one.number == rendition; });
    if (removed > 0) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("document ", Quoted(DocumentName(handle.id)),
                                            " has no rendition ", rendition));
  };
  return document->Update(remove, disposal);
}

absl::Status DocumentStore::DropRendition(const DocumentHandle& handle, int64_t rendition) {
  return RemoveRendition(handle, rendition, DocumentFiles::Disposal::kTrash);
}

absl::Status DocumentStore::Quarantine(const DocumentHandle& handle, int64_t rendition) {
  return RemoveRendition(handle, rendition, DocumentFiles::Disposal::kQuarantine);
}

absl::Status DocumentStore::RemoveDocument(const DocumentHandle& handle,
                                           DocumentFiles::Disposal disposal) {
  FOLIO_ASSIGN_OR_RETURN(const auto document, Lookup(handle));
  absl::Status removed = document->Remove(disposal);
  if (document->is_gone()) Forget(document);
  return removed;
}

absl::Status DocumentStore::Delete(const DocumentHandle& handle) {
  return RemoveDocument(handle, DocumentFiles::Disposal::kTrash);
}

absl::Status DocumentStore::QuarantineDocument(const DocumentHandle& handle) {
  return RemoveDocument(handle, DocumentFiles::Disposal::kQuarantine);
}

StoreUsage DocumentStore::usage() const {
  StoreUsage usage;
  usage.num_documents = static_cast<int64_t>(List().size());
  usage.bytes = space_.used();
  usage.num_quarantined = trash_.num_quarantined();
  usage.num_unremovable = trash_.num_unremovable();
  return usage;
}

}  // namespace folio
