// How documents are to be kept: their attributes, when they were last used and whether they expire.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/document_directory.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

// The time of use on disk follows after this part of the TTL, but not more often than that.
constexpr int64_t kTtlParts = 16;
constexpr int64_t kMinUpdateUs = 1'000'000;

}  // namespace

void DocumentDirectory::SetUsed(DocumentInfo* document) {
  document->attributes.last_used_us = limits_.now_us();
  first_expiry_us_ = std::min(first_expiry_us_, document->attributes.expires_at_us());
}

absl::StatusOr<DocumentInfo> DocumentDirectory::UpdateAttributes(
    const DocumentHandle& handle, absl::FunctionRef<void(DocumentAttributes*)> update) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return NoDocument(handle.id);
  DocumentAttributes attributes = document->attributes;
  update(&attributes);
  if (attributes.pinned && !document->attributes.pinned) {
    FOLIO_RETURN_IF_ERROR(CheckPinned(handle.id, pinned_bytes_, document->stored_bytes));
  }
  document->attributes = std::move(attributes);
  SetUsed(document);
  document->stored_use_us = document->attributes.last_used_us;
  return *document;
}

absl::Status DocumentDirectory::CheckPinned(const std::string& id, int64_t pinned_bytes,
                                            int64_t num_bytes) const {
  if (pinned_bytes + num_bytes <= limits_.max_pinned_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "document ", Quoted(DocumentName(id)), " takes ", num_bytes, " bytes on disk and ",
      pinned_bytes, " are pinned: together more than ", limits_.max_pinned_bytes,
      ", half of --store-bytes; unpin or delete documents, or raise --store-bytes"));
}

void DocumentDirectory::CopyAttributes(const DocumentHandle& handle,
                                       DocumentAttributes* attributes) const {
  MutexLock lock(&mu_);
  if (const DocumentInfo* document = Lookup(handle)) *attributes = document->attributes;
}

bool DocumentDirectory::Touch(const DocumentHandle& handle) {
  const Changing change(this, handle);
  DocumentInfo* const document = change.document;
  if (document == nullptr) return false;
  SetUsed(document);
  const DocumentAttributes& attributes = document->attributes;
  if (!document->saved || attributes.ttl_us == 0) return false;
  const int64_t interval = std::max(kMinUpdateUs, attributes.ttl_us / kTtlParts);
  if (attributes.last_used_us - document->stored_use_us < interval) return false;
  document->stored_use_us = attributes.last_used_us;
  return true;
}

std::vector<DocumentHandle> DocumentDirectory::Expired() const {
  std::vector<DocumentHandle> expired;
  MutexLock lock(&mu_);
  const int64_t now = limits_.now_us();
  if (now < first_expiry_us_) return expired;
  first_expiry_us_ = DocumentAttributes::kNever;
  for (const auto& [id, document] : documents_) {
    if (!IsFinished(document)) continue;
    const int64_t expiry = document.attributes.expires_at_us();
    first_expiry_us_ = std::min(first_expiry_us_, expiry);
    if (expiry <= now) expired.push_back(document.handle);
  }
  return expired;
}

}  // namespace folio
