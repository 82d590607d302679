#include "server/document_expiry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/types/document_name.h"
#include "server/document_upload.h"

namespace folio::server {
namespace {

constexpr size_t kPage = 100;

void ForEachUpload(const Engine& engine, const std::function<void(const DocumentInfo&)>& visit) {
  if (engine.CountDocuments()[static_cast<size_t>(DocumentState::kUploading)] == 0) return;
  std::string after;
  for (;;) {
    const std::vector<DocumentInfo> page = engine.ListDocuments(after, kPage);
    for (const DocumentInfo& document : page) {
      if (document.state == DocumentState::kUploading) visit(document);
    }
    if (page.size() < kPage) return;
    after = page.back().handle.id;
  }
}

// Whoever follows it hears why first.
void Delete(Engine* engine, const DocumentHandle& handle, const std::string& why) {
  engine->FailDocument(handle, absl::AbortedError(why)).IgnoreError();
  engine->DeleteDocument(handle).IgnoreError();
}

}  // namespace

void DeleteExpiredDocuments(Engine* engine) {
  for (const DocumentHandle& handle : engine->ExpiredDocuments()) {
    // Deleted meanwhile: gone as well.
    if (engine->DeleteDocument(handle).ok()) {
      spdlog::info("document {} was deleted: its TTL is over", handle.id);
    }
  }
}

void DeleteExpiredUploads(Engine* engine, SteadyTime now) {
  ForEachUpload(*engine, [engine, now](const DocumentInfo& document) {
    const auto upload = DocumentUpload::Of(document);
    // It is the server that reads no more of it while there is no room.
    if (document.short_of_room || now < upload->expires_at()) return;
    Delete(engine, document.handle,
           absl::StrCat("the upload of document ", Quoted(DocumentName(document.handle.id)),
                        " had no byte for ", upload->patience().count(), " s and was deleted"));
  });
}

bool DeleteEmptyUpload(Engine* engine, const std::string* owner) {
  struct Held {
    int count = 0;
    DocumentHandle oldest;
  };
  std::map<std::string, Held> by_owner;
  ForEachUpload(*engine, [&](const DocumentInfo& document) {
    const std::string of(DocumentOwner(document.handle.id));
    if (DocumentUpload::Of(document)->size_bytes() > 0 || (owner != nullptr && of != *owner))
      return;
    Held& held = by_owner[of];
    if (++held.count == 1 || document.handle.incarnation < held.oldest.incarnation) {
      held.oldest = document.handle;
    }
  });
  const auto most = std::max_element(
      by_owner.begin(), by_owner.end(),
      [](const auto& a, const auto& b) { return a.second.count < b.second.count; });
  if (most == by_owner.end()) return false;
  const DocumentHandle& oldest = most->second.oldest;
  Delete(engine, oldest,
         absl::StrCat("document ", Quoted(DocumentName(oldest.id)),
                      " gave its place to another one: no byte of it had come"));
  return true;
}

}  // namespace folio::server
