#include "server/document_calls.h"

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/mutex.h"
#include "engine/types/document_name.h"
#include "server/document_attributes.h"
#include "server/polled_call.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;

// What the engine calls the document of the caller that the call is about.
std::string IdOf(UnaryCall* call, const std::string& name) {
  call->NoteDocument(name);
  return DocumentIdOf(call->caller().owner, name);
}

grpc::Status BadId() { return BadField("document_id", kDocumentIdRule); }

// Whose documents are listed.
struct Scope {
  std::string owner;
  bool all = false;

  bool Has(const DocumentInfo& document) const {
    return all || DocumentOwner(document.handle.id) == owner;
  }
  // Documents of one owner follow each other; those of none do not.
  bool EndsBefore(const DocumentInfo& document) const { return !owner.empty() && !Has(document); }
  // What comes before its documents after `token`.
  std::string After(const std::string& token) const {
    return all ? token : DocumentIdOf(owner, token);
  }
  std::string TokenOf(const DocumentInfo& document) const {
    return all ? document.handle.id : std::string(DocumentName(document.handle.id));
  }
  bool IsToken(const std::string& token) const {
    const std::string_view name = all ? DocumentName(token) : std::string_view(token);
    return IsValidDocumentId(std::string(name));
  }
};

// Up to `count` documents of the scope with the labels, after the page that ended with `token`.
std::vector<DocumentInfo> ListWith(const Labels& labels, const Engine& engine, const Scope& scope,
                                   const std::string& token, size_t count) {
  std::vector<DocumentInfo> found;
  std::string after = scope.After(token);
  for (;;) {
    std::vector<DocumentInfo> page = engine.ListDocuments(after, count);
    const bool last = page.size() < count || scope.EndsBefore(page.back());
    if (!last) after = page.back().handle.id;
    for (DocumentInfo& document : page) {
      if (!scope.Has(document) || !HasLabels(document.attributes, labels)) continue;
      found.push_back(std::move(document));
      if (found.size() == count) return found;
    }
    if (last) return found;
  }
}

// What becomes of an update, told by one thread and asked for by another.
class Outcome {
 public:
  void Set(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_ = status;
  }
  std::optional<absl::Status> Get() const {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  mutable Mutex mu_;
  std::optional<absl::Status> status_ FOLIO_GUARDED_BY(mu_);
};

// The answer of a call about a document that may have gone meanwhile.
grpc::Status Answer(const Engine& engine, const DocumentHandle& handle, v1::Document* response) {
  const auto document = engine.GetDocument(handle.id);
  if (!document.has_value() || document->handle != handle) return NoDocument(handle.id);
  ToProto(*document, response);
  return grpc::Status::OK;
}

}  // namespace

size_t NumDocumentsOf(const Engine& engine, const Caller& caller) {
  if (caller.is_admin) {
    const DocumentCounts all = engine.CountDocuments();
    return static_cast<size_t>(std::accumulate(all.begin(), all.end(), 0));
  }
  const Scope scope{caller.owner};
  size_t count = 0;
  for (std::string token;;) {
    const auto page = ListWith({}, engine, scope, token, kDefaultPage);
    count += page.size();
    if (page.size() < kDefaultPage) return count;
    token = scope.TokenOf(page.back());
  }
}

grpc::ServerUnaryReactor* RunGetDocument(ServiceContext* context, UnaryCall* call,
                                         const v1::GetDocumentRequest& request,
                                         v1::Document* response) {
  if (!IsValidDocumentId(request.document_id())) return call->End(BadId());
  const std::string id = IdOf(call, request.document_id());
  const auto document = context->engine()->GetDocument(id);
  if (!document.has_value()) return call->End(NoDocument(id));
  ToProto(*document, response);
  return call->End(grpc::Status::OK);
}

grpc::ServerUnaryReactor* RunListDocuments(ServiceContext* context, UnaryCall* call,
                                           const v1::ListDocumentsRequest& request,
                                           v1::ListDocumentsResponse* response) {
  FieldViolations bad;
  if (request.page_size() > kMaxPage) {
    bad.push_back(
        {"page_size", absl::StrCat("is ", request.page_size(), ", the limit is ", kMaxPage)});
  }
  const Caller& caller = call->caller();
  if (request.all_tenants() && !caller.is_admin) {
    return call->End(ToGrpcStatus(absl::PermissionDeniedError("all_tenants is for administrators"),
                                  {"NOT_ADMIN", {}, {}}));
  }
  const Scope scope{caller.owner, request.all_tenants()};
  // A page token is the last id of the page before.
  if (!request.page_token().empty() && !scope.IsToken(request.page_token())) {
    bad.push_back({"page_token", "is not one that ListDocuments returned"});
  }
  CheckLabels(request.labels(), "labels", &bad);
  if (!bad.empty()) return call->End(BadFields(bad));
  const uint32_t size = request.page_size() == 0 ? kDefaultPage : request.page_size();
  const auto page =
      ListWith(request.labels(), *context->engine(), scope, request.page_token(), size + 1);
  for (size_t i = 0; i < page.size() && i < size; ++i) {
    v1::Document* const document = response->add_documents();
    ToProto(page[i], document);
    if (caller.is_admin) document->set_tenant(std::string(DocumentOwner(page[i].handle.id)));
  }
  if (page.size() > size) response->set_next_page_token(scope.TokenOf(page[size - 1]));
  return call->End(grpc::Status::OK);
}

grpc::ServerUnaryReactor* RunDeleteDocument(ServiceContext* context, UnaryCall* call,
                                            const v1::DeleteDocumentRequest& request,
                                            v1::DeleteDocumentResponse*) {
  if (!IsValidDocumentId(request.document_id())) return call->End(BadId());
  const std::string id = IdOf(call, request.document_id());
  const auto document = context->engine()->GetDocument(id);
  if (!document.has_value()) return call->End(NoDocument(id));
  // Deleted meanwhile: gone as well.
  const absl::Status deleted = context->engine()->DeleteDocument(document->handle);
  return call->End(absl::IsNotFound(deleted) ? NoDocument(id) : ToGrpcStatus(deleted));
}

grpc::ServerUnaryReactor* RunSaveDocument(ServiceContext* context, UnaryCall* call,
                                          const v1::SaveDocumentRequest& request,
                                          v1::Document* response) {
  if (!IsValidDocumentId(request.document_id())) return call->End(BadId());
  const std::string id = IdOf(call, request.document_id());
  const auto document = context->engine()->GetDocument(id);
  if (!document.has_value()) return call->End(NoDocument(id));
  const DocumentHandle handle = document->handle;
  const absl::Status ordered = context->engine()->SaveDocument(handle);
  if (absl::IsNotFound(ordered)) return call->End(NoDocument(id));
  if (!ordered.ok()) return call->End(ToGrpcStatus(ordered));
  const auto poll = [context, handle, response]() -> std::optional<grpc::Status> {
    const auto saved = context->engine()->GetDocument(handle.id);
    if (saved.has_value() && saved->handle == handle && !saved->saved) {
      if (saved->save_error.ok()) return std::nullopt;
      return context->Refusal(saved->save_error);
    }
    return Answer(*context->engine(), handle, response);
  };
  return PolledCall::Start(context, call, poll);
}

grpc::ServerUnaryReactor* RunUpdateDocument(ServiceContext* context, UnaryCall* call,
                                            const v1::UpdateDocumentRequest& request,
                                            v1::Document* response) {
  FieldViolations bad;
  if (!IsValidDocumentId(request.document_id())) bad.push_back({"document_id", kDocumentIdRule});
  CheckTtl(request.ttl(), "ttl", &bad);
  CheckLabels(request.set_labels(), "set_labels", &bad);
  if (!bad.empty()) return call->End(BadFields(bad));
  const std::string id = IdOf(call, request.document_id());
  const auto document = context->engine()->GetDocument(id);
  if (!document.has_value()) return call->End(NoDocument(id));
  const DocumentHandle handle = document->handle;
  const auto outcome = std::make_shared<Outcome>();
  bool fits = true;
  const auto change = [&](DocumentAttributes* attributes) { fits = Update(request, attributes); };
  const absl::Status ordered = context->engine()->UpdateDocument(
      handle, change, [outcome](const absl::Status& status) { outcome->Set(status); });
  if (absl::IsNotFound(ordered)) return call->End(NoDocument(id));
  if (!ordered.ok()) return call->End(context->Refusal(ordered));
  if (!fits) {
    return call->End(BadField(
        "set_labels", absl::StrCat("would leave the document with more than ", kMaxLabels)));
  }
  const auto poll = [context, handle, outcome, response]() -> std::optional<grpc::Status> {
    const std::optional<absl::Status> written = outcome->Get();
    if (!written.has_value()) return std::nullopt;
    if (!written->ok()) return context->Refusal(*written);
    return Answer(*context->engine(), handle, response);
  };
  return PolledCall::Start(context, call, poll);
}

}  // namespace folio::server
