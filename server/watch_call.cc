#include "server/watch_call.h"

#include <google/protobuf/util/message_differencer.h>

#include <chrono>
#include <utility>

#include "engine/base/catch_errors.h"
#include "engine/types/document_name.h"
#include "server/call_end.h"
#include "server/request_mapping.h"

namespace folio::server {
namespace {

// Only the newest matters to a slow reader.
bool Merge(const v1::Document& from, v1::Document* into) {
  *into = from;
  return true;
}

bool IsLast(const v1::Document& document, bool until_saved) {
  if (document.state() == v1::Document::STATE_FAILED) return true;
  if (document.state() != v1::Document::STATE_READY) return false;
  return !until_saved || document.saved() || !document.save_error().empty();
}

}  // namespace

WatchCall* WatchCall::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                            Caller caller, const Incoming<v1::WatchDocumentRequest>* request) {
  std::shared_ptr<WatchCall> call(new WatchCall(context, rpc, std::move(caller)));
  call->self_ = call;
  context->streams.Add();
  const absl::Status begun = CatchErrors([&] {
    grpc::Status status = call->Begin(*request);
    if (!status.ok()) call->writes_.Finish(std::move(status));
  });
  if (!begun.ok()) call->writes_.Finish(ToGrpcStatus(begun));
  return call.get();
}

WatchCall::WatchCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller)
    : context_(context),
      caller_(std::move(caller)),
      arrived_(context->clock()),
      trace_(context->TraceOf(*rpc)),
      writes_({.write = [this](const v1::Document* document) { StartWrite(document); },
               .finish =
                   [this, rpc](grpc::Status status) {
                     CatchErrors([&] { SendTraceparent(trace_, rpc); }).IgnoreError();
                     Finish(std::move(status));
                   },
               .merge = Merge}),
      next_progress_(arrived_) {}

grpc::Status WatchCall::Begin(const Incoming<v1::WatchDocumentRequest>& incoming) {
  if (grpc::Status loaded = context_->CheckServing(); !loaded.ok()) return loaded;
  if (grpc::Status bad = incoming.Read(); !bad.ok()) return bad;
  const std::string& name = incoming.message().document_id();
  id_ = DocumentIdOf(caller_.owner, name);
  until_saved_ = incoming.message().until_saved();
  if (!IsValidDocumentId(name)) return BadField("document_id", kDocumentIdRule);
  const auto document = context_->engine()->GetDocument(id_);
  if (!document.has_value()) return NoDocument(id_);
  if (until_saved_ && context_->options.engine.kv_dir.empty()) {
    return ToGrpcStatus(absl::FailedPreconditionError(
        "documents are not stored: the server was started without --kv-dir"));
  }
  handle_ = document->handle;
  context_->pump.Register(shared_from_this());
  context_->watches.Join(id_, shared_from_this());
  return grpc::Status::OK;
}

void WatchCall::Tick(SteadyTime now) {
  // Documents may take longer than a drain.
  if (context_->is_draining() && !writes_.final_code().has_value()) {
    return writes_.Finish(context_->Refusal(absl::UnavailableError("the server is draining")));
  }
  if (!has_progress_ || now < next_progress_) return;
  Tell(context_->engine()->GetDocument(id_), now);
}

void WatchCall::OnDocument(const std::optional<DocumentInfo>& info, SteadyTime now) {
  const bool progress = info.has_value() && info->handle == *handle_ &&
                        info->state == told_state_ && info->saved == told_.saved() &&
                        info->save_error.ok();
  has_progress_ = progress && now < next_progress_;
  if (!has_progress_) Tell(info, now);
}

void WatchCall::Tell(const std::optional<DocumentInfo>& info, SteadyTime now) {
  if (writes_.final_code().has_value()) return;
  has_progress_ = false;
  if (!info.has_value() || info->handle != *handle_) return writes_.Finish(NoDocument(id_));
  v1::Document document;
  ToProto(*info, &document);
  if (google::protobuf::util::MessageDifferencer::Equals(document, told_)) return;
  told_ = document;
  told_state_ = info->state;
  next_progress_ = now + kInterval;
  writes_.Push(std::move(document));
  if (IsLast(told_, until_saved_)) writes_.Finish(grpc::Status::OK);
}

void WatchCall::Stop(const absl::Status& status) { writes_.Finish(ToGrpcStatus(status)); }

void WatchCall::OnWriteDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] { writes_.OnWriteDone(ok); });
}

void WatchCall::OnCancel() {
  context_->pump.Run(shared_from_this(), [&] {
    writes_.Finish(ToGrpcStatus(absl::CancelledError("the client is gone")));
  });
}

void WatchCall::OnDone() {
  CatchErrors([&] {
    const std::chrono::duration<double> elapsed = context_->clock() - arrived_;
    const char* code = CodeName(writes_.final_code().value_or(grpc::StatusCode::UNKNOWN));
    context_->Keep({.method = "WatchDocument",
                    .code = code,
                    .tenant = caller_.owner,
                    .identity = caller_.identity,
                    .address = caller_.address,
                    .document_id = std::string(DocumentName(id_)),
                    .trace_id = trace_.trace_id,
                    .seconds = elapsed.count()});
  }).IgnoreError();
  context_->watches.Leave(id_, self_);
  context_->pump.Unregister(self_);
  std::shared_ptr<WatchCall> last = std::move(self_);
  last->context_->streams.Remove();
}

}  // namespace folio::server
