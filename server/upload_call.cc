#include "server/upload_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "server/request_id.h"
#include "server/request_mapping.h"
#include "server/rpc_deadline.h"

namespace folio::server {
namespace {

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

UploadCall* UploadCall::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                              Caller caller) {
  std::shared_ptr<UploadCall> call(new UploadCall(context, rpc, std::move(caller)));
  const auto cancel = [weak = std::weak_ptr(call)](const absl::Status& status) {
    const auto running = weak.lock();
    if (running == nullptr) return;
    running->context_->pump.Run(running, [&] { running->EndUpload(ToGrpcStatus(status)); });
  };
  call->listed_ = context->calls.Add(
      {"UploadDocument", call->caller_.address, call->caller_.owner, call->arrived_,
       context->TraceOf(*rpc), DeadlineOf(*rpc), call->caller_.identity},
      cancel);
  call->listed_->SetRequestId(RequestIdFor(""));
  call->self_ = call;
  context->streams.Add();
  const absl::Status begun = CatchErrors([&] {
    if (grpc::Status refused = context->CheckServing(); !refused.ok()) {
      return call->writes_.Finish(std::move(refused));
    }
    context->pump.Register(call);
    call->StartRead(&call->request_);
  });
  if (!begun.ok()) call->writes_.Finish(ToGrpcStatus(begun));
  return call.get();
}

UploadCall::UploadCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller)
    : context_(context),
      rpc_(rpc),
      caller_(std::move(caller)),
      arrived_(context->clock()),
      writes_({.write = [this](const v1::UploadDocumentEvent* event) { StartWrite(event); },
               .finish =
                   [this](grpc::Status status) {
                     end_ = SendTrailers(status, *listed_, rpc_);
                     Finish(std::move(status));
                   },
               .merge = Merge}) {}

void UploadCall::OnReadDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] { ok ? OnPart() : OnHalfClose(); });
}

void UploadCall::OnPart() {
  const size_t bytes = request_.bytes();
  // At worst a token for each byte.
  const auto needed = static_cast<int64_t>((1 + sizeof(int32_t)) * bytes);
  if (grpc::Status refused = context_->TakeMemory(caller_, needed, &memory_); !refused.ok()) {
    return EndUpload(refused);
  }
  const auto call = shared_from_this();
  const auto fail = [call](const absl::Status& status) {
    call->context_->pump.Run(call, [&] { call->OnProcessFailed(status); });
  };
  context_->pool.Post(PromptPool::LaneFor(bytes), caller_.tenant->name,
                      {[call] { call->Process(); }, fail});
}

void UploadCall::OnHalfClose() {
  {
    MutexLock lock(&mu_);
    if (all_received_) return;  // the client waits for `ready`
  }
  EndUpload(ToGrpcStatus(
      absl::AbortedError("the upload ended without `finish`; resume it with its document_id"),
      {"UPLOAD_INCOMPLETE", {}, {}}));
}

void UploadCall::EndUpload(const grpc::Status& status) {
  PauseUnlessDetached();
  writes_.Finish(status);
}

void UploadCall::OnProcessFailed(const absl::Status& status) {
  // How much of the part was taken is not known.
  EndUpload(subject_ == nullptr ? ToGrpcStatus(status) : FailDocument("chunk.data", status));
}

void UploadCall::Process() {
  const grpc::Status status = Dispatch();
  if (!status.ok()) return EndUpload(status);
  request_ = {};  // lets go of its memory
  memory_ = {};
  ReadNext();
}

void UploadCall::ReadNext() {
  const auto document = FindDocument();
  if (document.has_value() && document->short_of_room) return waits_for_room_.store(true);
  bool reading = false;
  writes_.IfOpen([this, &reading] {
    StartRead(&request_);
    reading = true;
  });
  if (!reading) PauseUnlessDetached();
}

void UploadCall::Tick(SteadyTime) {
  if (context_->is_draining()) EndForDrain();
  if (waits_for_room_.exchange(false)) ReadNext();
}

void UploadCall::EndForDrain() {
  {
    MutexLock lock(&mu_);
    if (all_received_) return;  // `ready` comes
  }
  if (writes_.final_code().has_value()) return;
  const char* const what_is_left =
      context_->options.engine.kv_dir.empty()
          ? "the text is lost with it, for there is no --kv-dir; upload it again"
          : "go on with the document_id and the upload_token once it is back: `created` says "
            "behind which byte of the text";
  EndUpload(context_->Refusal(
      absl::UnavailableError(absl::StrCat("the server is draining; ", what_is_left))));
}

void UploadCall::Handle(Event event) {
  if (!saw_created_) {
    MutexLock wait_for_created(&mu_);
    saw_created_ = true;
  }
  if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    OnProgress(*prefill);
  } else if (std::holds_alternative<CompletedEvent>(event)) {
    SendReady();
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    {
      MutexLock lock(&mu_);
      if (says_why_) return;
    }
    writes_.Finish(ToGrpcStatus(failed->status));
  }
}

void UploadCall::OnProgress(const PrefillEvent& prefill) {
  const SteadyTime now = context_->clock();
  listed_->EnterPhase(CallPhase::kPrefill, now);
  listed_->AddPromptTokens(prefill.total_tokens -
                           std::exchange(num_known_tokens_, prefill.total_tokens));
  listed_->AddComputedTokens(prefill.processed_tokens -
                             std::exchange(num_computed_tokens_, prefill.processed_tokens));
  const bool whole = prefill.processed_tokens == prefill.total_tokens;
  if (!whole && last_progress_ != SteadyTime{} && now - last_progress_ < kProgressInterval) return;
  last_progress_ = now;
  v1::UploadDocumentEvent event;
  event.mutable_progress()->set_known_tokens(static_cast<uint64_t>(prefill.total_tokens));
  event.mutable_progress()->set_prefilled_tokens(static_cast<uint64_t>(prefill.processed_tokens));
  writes_.Push(std::move(event));
}

void UploadCall::SendReady() {
  const auto document = FindDocument();
  if (!document.has_value()) return writes_.Finish(NoDocument(subject_->document.id));
  context_->metrics->OnDocumentReady(Seconds(arrived_, context_->clock()));
  v1::UploadDocumentEvent event;
  ToProto(*document, event.mutable_ready());
  writes_.Push(std::move(event));
  writes_.Finish(grpc::Status::OK);
}

void UploadCall::Stop(const absl::Status& status) { EndUpload(ToGrpcStatus(status)); }

void UploadCall::PauseUnlessDetached() {
  const auto pause = [call = shared_from_this()] {
    const auto subject = [&call]() -> std::shared_ptr<const Subject> {
      MutexLock lock(&call->mu_);
      return call->all_received_ ? nullptr : call->subject_;
    }();
    if (subject == nullptr || subject->detach) return;
    DocumentUpload& upload = *subject->upload;
    MutexLock work_lock(&upload.work_mu);
    if (upload.owner.lock() == call) call->context_->engine()->PauseDocument(subject->document);
  };
  // It waits for the part in work.
  context_->pool.Post(PromptPool::Lane::kLong, caller_.tenant->name,
                      {pause, [](const absl::Status&) {}});
}

void UploadCall::OnWriteDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] { writes_.OnWriteDone(ok); });
}

void UploadCall::OnCancel() {
  context_->pump.Run(shared_from_this(),
                     [&] { EndUpload(ToGrpcStatus(absl::CancelledError("the client is gone"))); });
}

void UploadCall::OnDone() {
  CatchErrors([&] { KeepRecord(*listed_, end_, context_); }).IgnoreError();
  context_->pump.Unregister(self_);
  std::shared_ptr<UploadCall> last = std::move(self_);
  last->context_->streams.Remove();
}

}  // namespace folio::server
