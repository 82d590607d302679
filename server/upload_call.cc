#include "server/upload_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/logging.h"
#include "server/request_mapping.h"

namespace folio::server {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 1024;
constexpr std::chrono::milliseconds kProgressInterval{100};

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

// Of acknowledgements and progress only the newest matters to a slow reader.
bool Merge(const v1::UploadDocumentEvent& from, v1::UploadDocumentEvent* into) {
  if (from.event_case() != into->event_case()) return false;
  if (!from.has_progress() && !from.has_ack()) return false;
  *into = from;
  return true;
}

}  // namespace

v1::Document DescribeToClient(const Engine& engine, const UploadState& state) {
  v1::Document document;
  ToProto(DescribeDocument(engine, state), &document);
  document.set_display_name(state.display_name);
  document.mutable_create_time()->set_seconds(state.create_time);
  std::lock_guard<std::mutex> lock(state.mu);
  document.set_size_bytes(state.next_offset);
  return document;
}

UploadCall* UploadCall::Start(ServiceContext* context) {
  std::shared_ptr<UploadCall> call(new UploadCall(context));
  call->self_ = call;
  context->streams.Add();
  call->StartSendInitialMetadata();
  if (grpc::Status refused = context->CheckServing(); !refused.ok()) {
    call->writes_.Finish(std::move(refused));
    return call.get();
  }
  context->pump.Register(call);
  call->StartRead(&call->request_);
  return call.get();
}

UploadCall::UploadCall(ServiceContext* context)
    : context_(context),
      engine_(context->engine()),
      arrived_(context->clock()),
      writes_({.write = [this](const v1::UploadDocumentEvent* event) { StartWrite(event); },
               .finish = [this](grpc::Status status) { Finish(std::move(status)); },
               .merge = Merge}) {}

void UploadCall::OnReadDone(bool ok) {
  if (ok) {
    context_->pool.Post([call = shared_from_this()] { call->Process(); });
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (all_received_) return;  // the client waits for `ready`
  }
  PauseUnlessDetached();
  writes_.Finish(ToGrpcStatus(
      absl::AbortedError("the upload ended without `finish`; resume it with its document_id"),
      {"UPLOAD_INCOMPLETE", {}, {}}));
}

void UploadCall::Process() {
  const grpc::Status status = Dispatch();
  if (!status.ok()) {
    PauseUnlessDetached();
    writes_.Finish(status);
    return;
  }
  bool reading = false;
  writes_.IfOpen([this, &reading] {
    StartRead(&request_);
    reading = true;
  });
  if (!reading) PauseUnlessDetached();
}

grpc::Status UploadCall::Dispatch() {
  if (state_ == nullptr && !request_.has_header()) {
    return BadField("header", "must be the first request of an upload");
  }
  switch (request_.request_case()) {
    case v1::UploadDocumentRequest::kHeader:
      return OnHeader(request_.header());
    case v1::UploadDocumentRequest::kChunk:
      return OnChunk(request_.chunk());
    case v1::UploadDocumentRequest::kFinish:
      return OnFinish(request_.finish());
    default:
      return BadField("request", "one of header, chunk or finish must be set");
  }
}

grpc::Status UploadCall::OnHeader(const v1::DocumentHeader& header) {
  if (state_ != nullptr) return BadField("header", "was sent twice");
  if (!header.document_id().empty() && !IsValidDocumentId(header.document_id())) {
    return BadField("header.document_id", "must be 1 to 64 characters of [A-Za-z0-9_-]");
  }
  if (header.display_name().size() > kMaxNameBytes) {
    return BadField("header.display_name", absl::StrCat("has ", header.display_name().size(),
                                                        " bytes, the limit is ", kMaxNameBytes));
  }
  return Open(header);
}

grpc::Status UploadCall::Open(const v1::DocumentHeader& header) {
  const auto attention =
      engine_->ResolveAttention(FromProto(header.strategy(), header.position()), {});
  if (!attention.ok()) return BadAttention(attention.status(), "header.");
  const auto opened = context_->documents.FindOrCreate(
      {header.document_id(), header.display_name(), *attention, engine_->tokenizer()});
  if (!opened.ok()) return ToGrpcStatus(opened.status(), {"TOO_MANY_DOCUMENTS", {}, {}});
  UploadState& state = *opened->state;
  // An upload that goes on need not repeat its strategy.
  if (header.has_strategy() && state.attention.strategy != attention->strategy) {
    return BadField("header.strategy", absl::StrCat("is ", attention->strategy.name, ", document '",
                                                    state.id, "' was begun with another one"));
  }
  if (header.has_position() && state.attention.position != attention->position) {
    return BadField("header.position", absl::StrCat("is ", attention->position.name, ", document '",
                                                    state.id, "' was begun with another one"));
  }
  std::lock_guard<std::mutex> work_lock(state.work_mu);
  // Events wait behind `created`: the pump takes this lock too.
  std::lock_guard<std::mutex> lock(mu_);
  state_ = opened->state;
  detach_ = header.detach();
  grpc::Status taken = TakeOwnership(opened->is_new);
  if (!taken.ok()) state_ = nullptr;
  return taken;
}

grpc::Status UploadCall::TakeOwnership(bool is_new) {
  uint64_t next_offset;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    next_offset = state_->next_offset;
    if (!state_->error.ok()) {
      return ToGrpcStatus(absl::FailedPreconditionError(absl::StrCat(
                              "document '", state_->id, "' has failed (", state_->error.message(),
                              "); delete it to upload it again")),
                          {"DOCUMENT_FAILED", {{"document_id", state_->id}}, {}});
    }
    if (state_->finished) {
      return ToGrpcStatus(absl::AlreadyExistsError(
          absl::StrCat("document '", state_->id, "' exists and is finished")));
    }
  }
  const absl::Status opened = engine_->OpenDocument(state_->id, state_->attention,
                                                    context_->pump.SinkFor(shared_from_this()));
  if (!opened.ok()) {
    if (is_new) context_->documents.Erase(state_->id);
    return context_->Refusal(opened);
  }
  if (const auto previous = state_->owner.lock()) previous->OnTakenOver();
  state_->owner = weak_from_this();
  v1::UploadDocumentEvent event;
  event.mutable_created()->set_document_id(state_->id);
  event.mutable_created()->set_next_offset(next_offset);
  writes_.Push(std::move(event));
  return grpc::Status::OK;
}

bool UploadCall::IsOwner() const { return state_->owner.lock().get() == this; }

void UploadCall::OnTakenOver() {
  writes_.Finish(ToGrpcStatus(absl::AbortedError("another connection has taken this upload over"),
                              {"UPLOAD_TAKEN_OVER", {}, {}}));
}

absl::Status UploadCall::AppendTokens(std::vector<int32_t> tokens) {
  if (!state_->begun) {
    const int32_t bos = engine_->tokenizer().bos_id();
    if (bos >= 0) tokens.insert(tokens.begin(), bos);
    state_->begun = true;
  }
  if (tokens.empty()) return absl::OkStatus();
  state_->NoteTokens(tokens, engine_->tokenizer());
  return engine_->AppendToDocument(state_->id, std::move(tokens));
}

grpc::Status UploadCall::FailDocument(const std::string& field, const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->error = status;
  }
  grpc::Status answer = status.code() == absl::StatusCode::kInvalidArgument
                            ? BadField(field, std::string(status.message()))
                            : ToGrpcStatus(status);
  writes_.Finish(answer);  // before the engine reports the deletion
  engine_->DeleteDocument(state_->id).IgnoreError();
  return answer;
}

grpc::Status UploadCall::CheckChunk(const v1::DocumentChunk& chunk) const {
  std::lock_guard<std::mutex> lock(state_->mu);
  if (state_->finished) return BadField("chunk", "follows `finish`");
  if (chunk.offset() != state_->next_offset) {
    return BadField("chunk.offset",
                    absl::StrCat("is ", chunk.offset(), ", expected ", state_->next_offset));
  }
  if (chunk.data().empty() || chunk.data().size() > kMaxChunkBytes) {
    return BadField("chunk.data", absl::StrCat("has ", chunk.data().size(),
                                               " bytes, must have 1 to ", kMaxChunkBytes));
  }
  const auto limit = static_cast<uint64_t>(context_->options.max_document_bytes);
  if (state_->next_offset + chunk.data().size() > limit) {
    return ToGrpcStatus(
        absl::ResourceExhaustedError(absl::StrCat("the document exceeds the limit of ", limit,
                                                  " bytes; see --max-document-bytes")),
        {"DOCUMENT_TOO_LARGE",
         {{"limit_bytes", absl::StrCat(limit)}},
         std::chrono::milliseconds(0)});
  }
  return grpc::Status::OK;
}

grpc::Status UploadCall::OnChunk(const v1::DocumentChunk& chunk) {
  std::lock_guard<std::mutex> work_lock(state_->work_mu);
  if (!IsOwner()) return grpc::Status::CANCELLED;  // OnTakenOver has said why
  if (grpc::Status bad = CheckChunk(chunk); !bad.ok()) return bad;
  std::vector<int32_t> tokens;
  if (const absl::Status added = state_->tokenizer.Add(chunk.data(), &tokens); !added.ok()) {
    return FailDocument("chunk.data", added);
  }
  if (const absl::Status appended = AppendTokens(std::move(tokens)); !appended.ok()) {
    return FailDocument("chunk.data", appended);
  }
  const uint64_t next_offset = chunk.offset() + chunk.data().size();
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->next_offset = next_offset;
  }
  v1::UploadDocumentEvent event;
  event.mutable_ack()->set_next_offset(next_offset);
  writes_.Push(std::move(event));
  return grpc::Status::OK;
}

grpc::Status UploadCall::OnFinish(const v1::FinishUpload& finish) {
  std::lock_guard<std::mutex> work_lock(state_->work_mu);
  if (!IsOwner()) return grpc::Status::CANCELLED;  // OnTakenOver has said why
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (state_->finished) return BadField("finish", "was sent twice");
    if (state_->next_offset == 0) return BadField("finish", "the document is empty");
    if (finish.total_bytes() != 0 && finish.total_bytes() != state_->next_offset) {
      return BadField("finish.total_bytes", absl::StrCat("is ", finish.total_bytes(), ", received ",
                                                         state_->next_offset));
    }
  }
  std::vector<int32_t> tokens;
  absl::Status status = state_->tokenizer.Finish(&tokens);
  if (status.ok()) status = AppendTokens(std::move(tokens));
  if (!status.ok()) return FailDocument("finish", status);
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->finished = true;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    all_received_ = true;
  }
  return ToGrpcStatus(engine_->FinishDocument(state_->id));
}

void UploadCall::Handle(Event event) {
  if (!saw_created_) {
    std::lock_guard<std::mutex> wait_for_created(mu_);
    saw_created_ = true;
  }
  if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    OnProgress(*prefill);
  } else if (std::holds_alternative<CompletedEvent>(event)) {
    SendReady();
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    writes_.Finish(ToGrpcStatus(failed->status));
  }
}

void UploadCall::OnProgress(const PrefillEvent& prefill) {
  const SteadyTime now = context_->clock();
  const bool whole = prefill.processed_tokens == prefill.total_tokens;
  if (!whole && last_progress_ != SteadyTime{} && now - last_progress_ < kProgressInterval) return;
  last_progress_ = now;
  v1::UploadDocumentEvent event;
  event.mutable_progress()->set_known_tokens(static_cast<uint64_t>(prefill.total_tokens));
  event.mutable_progress()->set_prefilled_tokens(static_cast<uint64_t>(prefill.processed_tokens));
  writes_.Push(std::move(event));
}

void UploadCall::SendReady() {
  context_->metrics->OnDocumentReady(Seconds(arrived_, context_->clock()));
  v1::UploadDocumentEvent event;
  v1::Document* ready = event.mutable_ready();
  *ready = DescribeToClient(*engine_, *state_);
  // The engine publishes its numbers a moment after the event.
  ready->set_state(v1::Document::STATE_READY);
  ready->set_prefilled_tokens(ready->token_count());
  writes_.Push(std::move(event));
  writes_.Finish(grpc::Status::OK);
}

void UploadCall::Stop(const absl::Status& status) { writes_.Finish(ToGrpcStatus(status)); }

void UploadCall::PauseUnlessDetached() {
  context_->pool.Post([call = shared_from_this()] {
    const auto state = [&call] {
      std::lock_guard<std::mutex> lock(call->mu_);
      return call->state_;
    }();
    if (state == nullptr || call->detach_) return;
    std::lock_guard<std::mutex> work_lock(state->work_mu);
    if (call->IsOwner()) call->engine_->PauseDocument(state->id);
  });
}

void UploadCall::OnWriteDone(bool ok) { writes_.OnWriteDone(ok); }

void UploadCall::OnCancel() {
  PauseUnlessDetached();
  writes_.Finish(ToGrpcStatus(absl::CancelledError("the client is gone")));
}

void UploadCall::OnDone() {
  const char* code = CodeName(writes_.final_code().value_or(grpc::StatusCode::UNKNOWN));
  context_->metrics->OnRpc("UploadDocument", code);
  std::string id;
  std::string strategy;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ != nullptr) {
      id = state_->id;
      strategy = state_->attention.strategy.name;
    }
  }
  LogRpc({"UploadDocument", code, id, strategy, Seconds(arrived_, context_->clock())});
  context_->pump.Unregister(self_);
  std::shared_ptr<UploadCall> last = std::move(self_);
  last->context_->streams.Remove();
}

}  // namespace folio::server
