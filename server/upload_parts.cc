// What the parts of an upload do: the header, chunks of text, and finish.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/quoted.h"
#include "engine/base/random_bits.h"
#include "engine/runtime/shortage.h"
#include "engine/types/document_name.h"
#include "server/document_attributes.h"
#include "server/document_expiry.h"
#include "server/request_mapping.h"
#include "server/upload_call.h"
#include "server/upload_header.h"

namespace folio::server {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

std::string FreshId() { return absl::StrCat("doc-", absl::Hex(RandomBits(), absl::kZeroPad16)); }

// Of a document that takes no upload any more.
grpc::Status WhyNotFollowed(const ServiceContext& context, const DocumentHandle& handle,
                            const absl::Status& status) {
  const auto document = context.engine()->GetDocument(handle.id);
  if (!document.has_value() || document->handle != handle) return NoDocument(handle.id);
  switch (document->state) {
    case DocumentState::kFailed:
      return DocumentRefusal(*document, status);
    case DocumentState::kPrefilling:
    case DocumentState::kReady:
      return ToGrpcStatus(absl::AlreadyExistsError(
          absl::StrCat("document ", Quoted(DocumentName(handle.id)), " exists and is finished")));
    case DocumentState::kUploading:
      break;
  }
  return context.Refusal(status);
}

// An upload that goes on need not repeat what it was begun with; what it repeats must be the same.
grpc::Status CheckGoesOn(const v1::DocumentHeader& header, const UploadSpec& spec,
                         const DocumentInfo& begun) {
  const std::string another = absl::StrCat(", document ", Quoted(DocumentName(begun.handle.id)),
                                           " was begun with another one");
  if (header.has_strategy() && begun.attention.strategy != spec.attention.strategy) {
    return BadField("header.strategy", absl::StrCat("is ", spec.attention.strategy.name, another));
  }
  if (header.has_position() && begun.attention.position != spec.attention.position) {
    return BadField("header.position", absl::StrCat("is ", spec.attention.position.name, another));
  }
  if (!header.adapter().empty() && begun.attention.adapter != spec.attention.adapter) {
    return BadField("header.adapter", absl::StrCat("is ", header.adapter(), another));
  }
  const bool says_format = header.format() != v1::PROMPT_FORMAT_UNSPECIFIED || header.has_system();
  if (says_format && DocumentUpload::Of(begun)->prompt_format != spec.lead.format) {
    return BadField(header.has_system() ? "header.system" : "header.format",
                    absl::StrCat("differs", another));
  }
  return grpc::Status::OK;
}

}  // namespace

grpc::Status UploadCall::Dispatch() {
  if (grpc::Status bad = request_.Read(); !bad.ok()) return bad;
  if (subject_ == nullptr && !request_.message().has_header()) {
    return BadField("header", "must be the first request of an upload");
  }
  switch (request_.message().request_case()) {
    case v1::UploadDocumentRequest::kHeader:
      return OnHeader(request_.message().header());
    case v1::UploadDocumentRequest::kChunk:
      return OnChunk(request_.message().chunk());
    case v1::UploadDocumentRequest::kFinish:
      return OnFinish(request_.message().finish());
    default:
      return BadField("request", "one of header, chunk or finish must be set");
  }
}

grpc::Status UploadCall::OnHeader(const v1::DocumentHeader& header) {
  if (subject_ != nullptr) return BadField("header", "was sent twice");
  UploadSpec spec;
  if (grpc::Status bad = ReadUploadHeader(header, *context_, caller_.owner, &spec); !bad.ok())
    return bad;
  if (grpc::Status refused = context_->TakeRequests(caller_, 1, 0); !refused.ok()) return refused;
  return Open(header, spec);
}

grpc::Status UploadCall::Open(const v1::DocumentHeader& header, const UploadSpec& spec) {
  const std::string name = header.document_id().empty() ? FreshId() : header.document_id();
  const std::string id = DocumentIdOf(caller_.owner, name);
  const auto fresh =
      std::make_shared<DocumentUpload>(header.display_name(), header.upload_token(), spec.lead,
                                       context_->ForUploads(context_->engine()->tokenizer()));
  const auto opened = OpenDocument(id, spec.attention, fresh, {caller_.tenant, header.priority()});
  if (absl::IsResourceExhausted(opened.status())) {
    return ToGrpcStatus(opened.status(), {"TOO_MANY_DOCUMENTS", {}, {}});
  }
  if (absl::IsInvalidArgument(opened.status())) {
    return BadFields({BadAttention(opened.status(), "header.")});
  }
  if (!opened.ok()) return context_->Refusal(opened.status());
  const auto begun_upload = DocumentUpload::Of(*opened);
  if (begun_upload == fresh) SetAttributes(opened->handle, header);
  if (begun_upload != fresh && opened->state == DocumentState::kUploading &&
      !begun_upload->HasToken(header.upload_token())) {
    return ToGrpcStatus(absl::PermissionDeniedError(absl::StrCat(
                            "document ", Quoted(name),
                            " is being uploaded; to go on with it, header.upload_token must be ",
                            "what `created` gave to the one who began it")),
                        {"UPLOAD_TOKEN_MISMATCH", {}, {}});
  }
  if (grpc::Status bad = CheckGoesOn(header, spec, *opened); !bad.ok()) return bad;
  const auto subject = std::make_shared<const Subject>(
      Subject{opened->handle, begun_upload, opened->attention.strategy.name, header.detach()});
  DocumentUpload& upload = *subject->upload;
  MutexLock work_lock(&upload.work_mu);
  // Events wait behind `created`: the pump takes this lock too.
  MutexLock lock(&mu_);
  const absl::Status followed = context_->engine()->FollowDocument(
      subject->document, context_->pump.SinkFor(shared_from_this()));
  if (!followed.ok()) return WhyNotFollowed(*context_, subject->document, followed);
  subject_ = subject;
  listed_->SetDocumentId(name);
  listed_->SetStrategy(subject->strategy);
  if (const auto previous = upload.owner.lock()) previous->OnTakenOver();
  upload.owner = weak_from_this();
  v1::UploadDocumentEvent event;
  event.mutable_created()->set_document_id(name);
  event.mutable_created()->set_next_offset(upload.size_bytes());
  event.mutable_created()->set_upload_token(upload.token);
  writes_.Push(std::move(event));
  return grpc::Status::OK;
}

absl::StatusOr<DocumentInfo> UploadCall::OpenDocument(const std::string& id,
                                                      const AttentionSpec& attention,
                                                      const std::shared_ptr<DocumentUpload>& fresh,
                                                      const Payer& payer) {
  auto opened = context_->engine()->OpenDocument(id, attention, fresh, payer);
  const bool of_tenant = IsLimitOfTenant(opened.status());
  if (absl::IsResourceExhausted(opened.status()) &&
      DeleteEmptyUpload(context_->engine(), of_tenant ? &caller_.owner : nullptr)) {
    opened = context_->engine()->OpenDocument(id, attention, fresh, payer);
  }
  if (!opened.ok() || opened->state != DocumentState::kFailed) return opened;
  // It holds nothing; deleted meanwhile: gone as well.
  context_->engine()->DeleteDocument(opened->handle).IgnoreError();
  return context_->engine()->OpenDocument(id, attention, fresh, payer);
}

// Of a new document, of which nothing is on disk: nothing is waited for. One that was deleted
// meanwhile needs none.
void UploadCall::SetAttributes(const DocumentHandle& handle, const v1::DocumentHeader& header) {
  const auto set = [&](DocumentAttributes* attributes) { *attributes = AttributesOf(header); };
  context_->engine()->UpdateDocument(handle, set, [](const absl::Status&) {}).IgnoreError();
}

void UploadCall::OnTakenOver() {
  writes_.Finish(ToGrpcStatus(absl::AbortedError("another connection has taken this upload over"),
                              {"UPLOAD_TAKEN_OVER", {}, {}}));
}

grpc::Status UploadCall::CheckUploading(const std::string& request) const {
  const auto document = FindDocument();
  if (!document.has_value()) return NoDocument(subject_->document.id);
  if (document->state == DocumentState::kUploading) return grpc::Status::OK;
  if (document->state == DocumentState::kFailed) return ToGrpcStatus(document->error);
  return BadField(request, "follows `finish`");
}

grpc::Status UploadCall::Append(const std::string& field,
                                absl::StatusOr<std::vector<int32_t>> tokens, uint64_t text_bytes) {
  if (!tokens.ok()) return FailDocument(field, tokens.status());
  caller_.calls->TakeTokens(static_cast<int64_t>(tokens->size()), context_->clock());
  const absl::Status status = context_->engine()->AppendToDocument(
      subject_->document, *std::move(tokens), static_cast<int64_t>(text_bytes));
  if (status.ok()) return grpc::Status::OK;
  if (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) {
    return FailDocument(field, status);
  }
  const grpc::Status why = CheckUploading(field);
  return why.ok() ? ToGrpcStatus(status) : why;
}

grpc::Status UploadCall::FailDocument(const std::string& field, const absl::Status& status) {
  grpc::Status answer = absl::IsInvalidArgument(status)
                            ? BadField(field, std::string(status.message()))
                        : status.GetPayload(kLimitPayload).has_value()
                            ? context_->Refusal(status)
                            : ToGrpcStatus(status, {"REQUEST_MEMORY", {}, {}});
  {
    MutexLock lock(&mu_);
    says_why_ = true;
  }
  // First: whoever hears of it finds the document failed.
  context_->engine()->FailDocument(subject_->document, status).IgnoreError();
  writes_.Finish(answer);
  return answer;
}

grpc::Status UploadCall::CheckChunk(const v1::DocumentChunk& chunk) const {
  if (grpc::Status bad = CheckUploading("chunk"); !bad.ok()) return bad;
  const uint64_t next_offset = subject_->upload->size_bytes();
  if (chunk.offset() != next_offset) {
    return BadField("chunk.offset",
                    absl::StrCat("is ", chunk.offset(), ", expected ", next_offset));
  }
  if (chunk.data().empty() || chunk.data().size() > kMaxChunkBytes) {
    return BadField("chunk.data", absl::StrCat("has ", chunk.data().size(),
                                               " bytes, must have 1 to ", kMaxChunkBytes));
  }
  return CheckDocumentBytes(next_offset + chunk.data().size(), context_->options);
}

grpc::Status UploadCall::OnChunk(const v1::DocumentChunk& chunk) {
  DocumentUpload& upload = *subject_->upload;
  MutexLock work_lock(&upload.work_mu);
  if (upload.owner.lock().get() != this) return grpc::Status::CANCELLED;  // OnTakenOver said why
  if (upload.part_open) return FailDocument("chunk.data", OutOfMemory());
  if (grpc::Status bad = CheckChunk(chunk); !bad.ok()) return bad;
  upload.part_open = true;
  auto tokens = upload.Add(chunk.data());
  const bool waits_for_more = tokens.ok() && tokens->empty();
  const uint64_t text_bytes = upload.tokenised_bytes();
  if (!waits_for_more) {
    grpc::Status bad = Append("chunk.data", std::move(tokens), text_bytes);
    if (!bad.ok()) return bad;
  }
  upload.part_open = false;
  v1::UploadDocumentEvent event;
  event.mutable_ack()->set_next_offset(upload.size_bytes());
  writes_.Push(std::move(event));
  return grpc::Status::OK;
}

grpc::Status UploadCall::OnFinish(const v1::FinishUpload& finish) {
  DocumentUpload& upload = *subject_->upload;
  MutexLock work_lock(&upload.work_mu);
  if (upload.owner.lock().get() != this) return grpc::Status::CANCELLED;  // OnTakenOver said why
  if (upload.part_open) return FailDocument("finish", OutOfMemory());
  if (grpc::Status bad = CheckUploading("finish"); !bad.ok()) return bad;
  const uint64_t received = upload.size_bytes();
  if (received == 0) return BadField("finish", "the document is empty");
  if (finish.total_bytes() != 0 && finish.total_bytes() != received) {
    return BadField("finish.total_bytes",
                    absl::StrCat("is ", finish.total_bytes(), ", received ", received));
  }
  upload.part_open = true;
  if (grpc::Status bad = Append("finish", upload.Finish(), received); !bad.ok()) return bad;
  upload.part_open = false;
  {
    MutexLock lock(&mu_);
    all_received_ = true;
  }
  return ToGrpcStatus(context_->engine()->FinishDocument(subject_->document));
}

std::optional<DocumentInfo> UploadCall::FindDocument() const {
  std::optional<DocumentInfo> document = context_->engine()->GetDocument(subject_->document.id);
  if (document.has_value() && document->handle != subject_->document) document.reset();
  return document;
}

}  // namespace folio::server
