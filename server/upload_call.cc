#include "server/upload_call.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

}  // namespace

v1::Document DescribeDocument(const DocumentInfo& info, const UploadState& upload) {
  v1::Document document;
  ToProto(info, &document);
  document.set_display_name(upload.display_name);
  document.mutable_create_time()->set_seconds(upload.create_time);
  return document;
}

UploadCall* UploadCall::Start(ServiceContext* context, grpc::CallbackServerContext*) {
  std::shared_ptr<UploadCall> call(new UploadCall(context));
  call->self_ = call;
  context->active_streams.fetch_add(1);
  call->StartSendInitialMetadata();
  call->StartRead(&call->request_);
  return call.get();
}

UploadCall::UploadCall(ServiceContext* context)
    : context_(context),
      writes_([this](const v1::UploadDocumentEvent* event) { StartWrite(event); },
              [this](grpc::Status status) { Finish(std::move(status)); }) {}

void UploadCall::OnReadDone(bool ok) {
  if (ok) {
    context_->pool.Post([call = shared_from_this()] { call->Process(); });
    return;
  }
  bool finished;
  {
    std::lock_guard<std::mutex> lock(mu_);
    finished = upload_finished_;
  }
  if (finished) return;  // nothing more to send: the client waits for `ready`
  Detach();
  FinishWith(ToGrpcStatus(
      absl::AbortedError("the upload ended without `finish`; resume it with its document_id")));
}

void UploadCall::Process() {
  const grpc::Status status = Dispatch();
  if (!status.ok()) {
    Detach();
    FinishWith(status);
    return;
  }
  if (!writes_.finished()) StartRead(&request_);
}

grpc::Status UploadCall::Dispatch() {
  if (upload_ == nullptr && !request_.has_header()) {
    return BadField("header", "must be the first request of an upload");
  }
  switch (request_.request_case()) {
    case v1::UploadDocumentRequest::kHeader: return OnHeader(request_.header());
    case v1::UploadDocumentRequest::kChunk: return OnChunk(request_.chunk());
    case v1::UploadDocumentRequest::kFinish: return OnFinish(request_.finish());
    default: return BadField("request", "one of header, chunk or finish must be set");
  }
}

grpc::Status UploadCall::OnHeader(const v1::DocumentHeader& header) {
  if (upload_ != nullptr) return BadField("header", "was sent twice");
  if (!header.document_id().empty() && !IsValidDocumentId(header.document_id())) {
    return BadField("header.document_id", "must be 1 to 64 characters of [A-Za-z0-9_-]");
  }
  const auto engine = context_->engine();
  if (!engine.ok()) return ToGrpcStatus(engine.status());
  const auto strategy = (*engine)->ResolveStrategy(FromProto(header.strategy()));
  if (!strategy.ok()) {
    return BadField("header.strategy", std::string(strategy.status().message()));
  }
  auto upload = context_->documents.OpenOrResume(header.document_id(), header.display_name(),
                                                 (*engine)->tokenizer());
  if (!upload.ok()) return ToGrpcStatus(upload.status());
  const absl::Status opened = (*engine)->OpenDocument((*upload)->id, *strategy,
                                                      context_->pump.SinkFor(shared_from_this()));
  if (!opened.ok()) return ToGrpcStatus(opened);
  engine_ = *engine;
  upload_ = *upload;
  detach_ = header.detach();
  v1::UploadDocumentEvent event;
  event.mutable_created()->set_document_id(upload_->id);
  {
    std::lock_guard<std::mutex> lock(upload_->mu);
    owner_ = ++upload_->owner;
    event.mutable_created()->set_next_offset(upload_->next_offset);
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    opened_ = true;
  }
  Send(std::move(event));
  return grpc::Status::OK;
}

grpc::Status UploadCall::CheckOwner() const {
  if (upload_->owner == owner_) return grpc::Status::OK;
  return ToGrpcStatus(absl::AbortedError("another connection has taken this upload over"));
}

grpc::Status UploadCall::AppendTokens(std::vector<int32_t> tokens) {
  if (!upload_->begun) {
    const int32_t bos = engine_->tokenizer().bos_id();
    if (bos >= 0) tokens.insert(tokens.begin(), bos);
    upload_->begun = true;
  }
  if (tokens.empty()) return grpc::Status::OK;
  return ToGrpcStatus(engine_->AppendToDocument(upload_->id, std::move(tokens)));
}

grpc::Status UploadCall::OnChunk(const v1::DocumentChunk& chunk) {
  std::lock_guard<std::mutex> lock(upload_->mu);
  if (grpc::Status owner = CheckOwner(); !owner.ok()) return owner;
  if (upload_->finished) return BadField("chunk", "follows `finish`");
  if (chunk.offset() != upload_->next_offset) {
    return BadField("chunk.offset", absl::StrCat("is ", chunk.offset(), ", expected ",
                                                 upload_->next_offset));
  }
  if (chunk.data().empty() || chunk.data().size() > kMaxChunkBytes) {
    return BadField("chunk.data", absl::StrCat("has ", chunk.data().size(),
                                               " bytes, must have 1 to ", kMaxChunkBytes));
  }
  const uint64_t total = upload_->next_offset + chunk.data().size();
  if (total > static_cast<uint64_t>(context_->options.max_document_bytes)) {
    return ToGrpcStatus(absl::ResourceExhaustedError(
        absl::StrCat("the document exceeds the limit of ", context_->options.max_document_bytes,
                     " bytes; see --max-document-bytes")));
  }
  std::vector<int32_t> tokens;
  if (const absl::Status added = upload_->tokenizer.Add(chunk.data(), &tokens); !added.ok()) {
    return BadField("chunk.data", std::string(added.message()));
  }
  upload_->next_offset = total;
  if (grpc::Status appended = AppendTokens(std::move(tokens)); !appended.ok()) return appended;
  v1::UploadDocumentEvent event;
  event.mutable_ack()->set_next_offset(total);
  Send(std::move(event));
  return grpc::Status::OK;
}

grpc::Status UploadCall::OnFinish(const v1::FinishUpload& finish) {
  std::lock_guard<std::mutex> lock(upload_->mu);
  if (grpc::Status owner = CheckOwner(); !owner.ok()) return owner;
  if (upload_->finished) return BadField("finish", "was sent twice");
  if (finish.total_bytes() != 0 && finish.total_bytes() != upload_->next_offset) {
    return BadField("finish.total_bytes", absl::StrCat("is ", finish.total_bytes(), ", received ",
                                                       upload_->next_offset));
  }
  if (upload_->next_offset == 0) return BadField("finish", "the document is empty");
  std::vector<int32_t> tokens;
  if (const absl::Status ended = upload_->tokenizer.Finish(&tokens); !ended.ok()) {
    return BadField("finish", std::string(ended.message()));
  }
  if (grpc::Status appended = AppendTokens(std::move(tokens)); !appended.ok()) return appended;
  upload_->finished = true;
  {
    std::lock_guard<std::mutex> own_lock(mu_);
    upload_finished_ = true;
  }
  return ToGrpcStatus(engine_->FinishDocument(upload_->id));
}

void UploadCall::Handle(Event event) {
  if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    v1::UploadDocumentEvent out;
    out.mutable_progress()->set_known_tokens(prefill->total_tokens);
    out.mutable_progress()->set_prefilled_tokens(prefill->processed_tokens);
    Send(std::move(out));
  } else if (std::holds_alternative<CompletedEvent>(event)) {
    SendReady();
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    FinishWith(ToGrpcStatus(failed->status));
  }
}

void UploadCall::SendReady() {
  const auto info = engine_->GetDocument(upload_->id);
  if (!info.has_value()) return FinishWith(ToGrpcStatus(absl::NotFoundError("deleted")));
  v1::UploadDocumentEvent event;
  DocumentInfo ready = *info;
  ready.prefilled_tokens = ready.known_tokens;
  *event.mutable_ready() = DescribeDocument(ready, *upload_);
  {
    std::lock_guard<std::mutex> lock(upload_->mu);
    event.mutable_ready()->set_size_bytes(upload_->next_offset);
  }
  Send(std::move(event));
  const auto elapsed = std::chrono::steady_clock::now() - arrived_;
  context_->metrics->OnDocumentReady(std::chrono::duration<double>(elapsed).count());
  FinishWith(grpc::Status::OK);
}

void UploadCall::Send(v1::UploadDocumentEvent event) {
  // Only the newest progress (and acknowledgement) matters to a slow reader.
  const auto merge = [&event](v1::UploadDocumentEvent* last) {
    if (last->event_case() != event.event_case()) return false;
    if (!event.has_progress() && !event.has_ack()) return false;
    *last = event;
    return true;
  };
  v1::UploadDocumentEvent copy = event;
  writes_.Push(std::move(copy), merge);
}

void UploadCall::Detach() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (gone_ || !opened_) return;
    gone_ = true;
  }
  if (detach_) return;
  std::lock_guard<std::mutex> lock(upload_->mu);
  if (upload_->owner == owner_) engine_->PauseDocument(upload_->id);
}

void UploadCall::FinishWith(const grpc::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!status.ok()) final_code_ = absl::StrCat(status.error_code());
  }
  writes_.Finish(status);
}

void UploadCall::OnWriteDone(bool ok) {
  writes_.OnWriteDone(ok);
  if (!ok) Detach();
}

void UploadCall::OnCancel() {
  Detach();
  FinishWith(grpc::Status::CANCELLED);
}

void UploadCall::OnDone() {
  std::string code;
  {
    std::lock_guard<std::mutex> lock(mu_);
    code = final_code_;
  }
  context_->metrics->OnRpc("UploadDocument", code);
  SPDLOG_INFO("UploadDocument {} code={}", upload_ != nullptr ? upload_->id : "-", code);
  context_->active_streams.fetch_sub(1);
  std::shared_ptr<UploadCall> last = std::move(self_);
}

}  // namespace folio::server
