#include "server/score_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "server/request_id.h"
#include "server/request_mapping.h"
#include "server/rpc_deadline.h"

namespace folio::server {
namespace {

constexpr size_t kMaxPartBytes = 1 << 20;
// Tokens that may wait for the engine before the next part is read.
constexpr int64_t kMaxWaitingTokens = 8192;
// The first bucket where they double.
constexpr uint64_t kFirstBucketTokens = 256;

bool NeverMerge(const v1::ScoreEvent&, v1::ScoreEvent*) { return false; }

}  // namespace

ScoreCall* ScoreCall::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                            Caller caller) {
  std::shared_ptr<ScoreCall> call(new ScoreCall(context, rpc, std::move(caller)));
  const auto cancel = [weak = std::weak_ptr(call)](const absl::Status& status) {
    const auto running = weak.lock();
    if (running == nullptr) return;
    running->context_->pump.Run(running, [&] { running->End(status); });
  };
  call->listed_ =
      context->calls.Add({"Score", call->caller_.address, call->caller_.owner, call->arrived_,
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
    call->MaybeRead();
  });
  if (!begun.ok()) call->writes_.Finish(ToGrpcStatus(begun));
  return call.get();
}

ScoreCall::ScoreCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller)
    : context_(context),
      rpc_(rpc),
      caller_(std::move(caller)),
      arrived_(context->clock()),
      writes_({.write =
                   [this](const v1::ScoreEvent* event) {
                     reader_.OnWriteStarted(context_->clock());
                     StartWrite(event);
                   },
               .finish =
                   [this](grpc::Status status) {
                     end_ = SendTrailers(status, *listed_, rpc_);
                     Finish(std::move(status));
                   },
               .merge = NeverMerge}),
      reader_(std::chrono::seconds(context->options.requests.slow_reader_seconds)) {}

void ScoreCall::MaybeRead() {
  const auto unread = static_cast<int64_t>(writes_.waiting_bytes());
  if (unread > context_->options.requests.max_stream_buffer_bytes)
    return;  // OnWriteDone asks again
  {
    MutexLock lock(&mu_);
    if (reads_ || all_received_ || num_waiting_ >= kMaxWaitingTokens) return;
    reads_ = true;
  }
  writes_.IfOpen([this] { StartRead(&request_); });
}

void ScoreCall::OnReadDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] { ok ? OnPart() : OnHalfClose(); });
}

void ScoreCall::OnPart() {
  const size_t bytes = request_.bytes();
  // At worst an id in each byte, and its token.
  const auto needed = static_cast<int64_t>((sizeof(uint32_t) + sizeof(int32_t)) * bytes);
  MemoryBudget::Share memory;
  if (grpc::Status refused = context_->TakeMemory(caller_, needed, &memory); !refused.ok()) {
    return Refuse(refused);
  }
  {
    MutexLock lock(&mu_);
    memory_ = std::move(memory);
  }
  PostWork(bytes, &ScoreCall::Process);
}

void ScoreCall::OnHalfClose() {
  {
    MutexLock lock(&mu_);
    all_received_ = true;
  }
  PostWork(PromptPool::kLongBytes, &ScoreCall::Complete);
}

void ScoreCall::PostWork(size_t bytes, void (ScoreCall::*work)()) {
  const auto call = shared_from_this();
  const auto fail = [call](const absl::Status& status) {
    call->context_->pump.Run(call, [&] { call->Refuse(ToGrpcStatus(status)); });
  };
  context_->pool.Post(PromptPool::LaneFor(bytes), caller_.tenant->name,
                      {[call, work] { (*call.*work)(); }, fail});
}

void ScoreCall::Refuse(const grpc::Status& status) {
  writes_.Finish(status);
  Abandon(absl::CancelledError("the text was refused"));
}

void ScoreCall::Process() {
  const grpc::Status status = Dispatch();
  if (!status.ok()) return Refuse(status);
  request_ = {};  // lets go of its memory
  {
    MutexLock lock(&mu_);
    reads_ = false;
    GiveBackMemory();
  }
  MaybeRead();
}

void ScoreCall::GiveBackMemory() {
  memory_.ShrinkTo(num_waiting_ * static_cast<int64_t>(sizeof(int32_t)));
}

grpc::Status ScoreCall::Dispatch() {
  if (grpc::Status bad = request_.Read(); !bad.ok()) return bad;
  if (request_.message().has_header()) return OnHeader(request_.message().header());
  if (!tokenizer_.has_value()) return BadField("header", "must be the first request of a stream");
  switch (request_.message().request_case()) {
    case v1::ScoreRequest::kText:
      return OnText(request_.message().text());
    case v1::ScoreRequest::kTokenIds:
      return OnTokenIds(request_.message().token_ids());
    default:
      return BadField("request", "one of header, text or token_ids must be set");
  }
}

grpc::Status ScoreCall::OnHeader(const v1::ScoreHeader& header) {
  if (tokenizer_.has_value()) return BadField("header", "was sent twice");
  AttentionSpec wanted = FromProto(header.strategy(), header.position());
  wanted.adapter.name = header.adapter();
  const auto resolved = context_->engine()->ResolveAttention(wanted, {});
  if (absl::IsNotFound(resolved.status())) return NoAdapter(resolved.status());
  if (!resolved.ok()) return BadFields({BadAttention(resolved.status(), "header.")});
  if (grpc::Status refused = context_->TakeRequests(caller_, 1, 0); !refused.ok()) return refused;
  header_ = header;
  listed_->SetStrategy(resolved->strategy.name);
  tokenizer_.emplace(context_->engine()->tokenizer());
  bucket_.set_end(header.bucket_tokens() > 0 ? header.bucket_tokens() : kFirstBucketTokens);
  v1::ScoreEvent accepted;
  *accepted.mutable_accepted()->mutable_strategy() = ToProto(resolved->strategy);
  *accepted.mutable_accepted()->mutable_position() = ToProto(resolved->position);
  accepted.mutable_accepted()->set_adapter(resolved->adapter.name);
  writes_.Push(std::move(accepted));
  MutexLock lock(&mu_);
  const auto id = context_->engine()->OpenScore(*resolved, {caller_.tenant},
                                                context_->pump.SinkFor(shared_from_this()));
  if (!id.ok()) return context_->Refusal(id.status());
  id_ = *id;
  listed_->AddEngineRequest(id_);
  listed_->EnterPhase(CallPhase::kPrefill, context_->clock());
  return grpc::Status::OK;
}

grpc::Status ScoreCall::OnText(const std::string& text) {
  if (begun_ && !saw_text_) return BadField("text", "follows token_ids");
  if (text.empty() || text.size() > kMaxPartBytes) {
    return BadField("text",
                    absl::StrCat("has ", text.size(), " bytes, must have 1 to ", kMaxPartBytes));
  }
  saw_text_ = true;
  std::vector<int32_t> tokens;
  if (const absl::Status added = tokenizer_->Add(text, &tokens); !added.ok()) {
    return BadField("text", std::string(added.message()));
  }
  return Append(std::move(tokens));
}

grpc::Status ScoreCall::OnTokenIds(const v1::TokenIds& ids) {
  if (saw_text_) return BadField("token_ids", "follows text");
  const auto vocab = static_cast<uint32_t>(context_->engine()->info().shape.vocab_size);
  for (const uint32_t id : ids.ids()) {
    if (id < vocab) continue;
    return BadField("token_ids.ids",
                    absl::StrCat("id ", id, " is not in the vocabulary of ", vocab));
  }
  begun_ = true;
  return Append({ids.ids().begin(), ids.ids().end()});
}

grpc::Status ScoreCall::Append(std::vector<int32_t> tokens) {
  if (tokens.empty()) return grpc::Status::OK;
  const int32_t bos = context_->engine()->tokenizer().bos_id();
  if (!begun_ && !header_.no_bos() && bos >= 0) tokens.insert(tokens.begin(), bos);
  begun_ = true;
  MutexLock lock(&mu_);
  if (id_ == 0) return grpc::Status::OK;  // the stream has failed and said so
  const auto count = static_cast<int64_t>(tokens.size());
  num_waiting_ += count;
  listed_->AddPromptTokens(count);
  caller_.calls->TakeTokens(count, context_->clock());
  return ToGrpcStatus(context_->engine()->AppendToScore(id_, std::move(tokens)));
}

grpc::Status ScoreCall::FinishText() {
  if (!tokenizer_.has_value()) return BadField("header", "must be the first request of a stream");
  std::vector<int32_t> tokens;
  if (saw_text_) {
    if (const absl::Status ended = tokenizer_->Finish(&tokens); !ended.ok()) {
      return BadField("text", std::string(ended.message()));
    }
  }
  return Append(std::move(tokens));
}

void ScoreCall::Complete() {
  if (const grpc::Status status = FinishText(); !status.ok()) return Refuse(status);
  MutexLock lock(&mu_);
  if (id_ != 0) context_->engine()->FinishScore(id_);
}

void ScoreCall::Handle(Event event) {
  if (const auto* scored = std::get_if<ScoredEvent>(&event)) {
    OnScored(*scored);
  } else if (const auto* completed = std::get_if<CompletedEvent>(&event)) {
    OnCompleted(*completed);
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    {
      MutexLock lock(&mu_);
      id_ = 0;
    }
    writes_.Finish(ToGrpcStatus(failed->status));
  }
}

void ScoreCall::OnScored(const ScoredEvent& scored) {
  if (header_.per_token()) {
    v1::ScoreEvent event;
    v1::TokenScores* tokens = event.mutable_tokens();
    tokens->set_first_position(static_cast<uint64_t>(scored.first_position));
    tokens->mutable_logprobs()->Add(scored.logprobs.begin(), scored.logprobs.end());
    writes_.Push(std::move(event));
  }
  listed_->AddComputedTokens(std::ssize(scored.logprobs));
  auto position = static_cast<uint64_t>(scored.first_position);
  for (const float logprob : scored.logprobs) {
    if (position++ >= bucket_.end()) CloseBucket();
    bucket_.set_num_tokens(bucket_.num_tokens() + 1);
    bucket_.set_log_likelihood(bucket_.log_likelihood() + logprob);
    log_likelihood_ += logprob;
  }
  {
    MutexLock lock(&mu_);
    num_waiting_ -= static_cast<int64_t>(scored.logprobs.size());
    if (!reads_) GiveBackMemory();
  }
  MaybeRead();
}

void ScoreCall::CloseBucket() {
  v1::ScoreEvent event;
  *event.mutable_bucket() = bucket_;
  writes_.Push(std::move(event));
  const uint64_t end = bucket_.end();
  bucket_.Clear();
  bucket_.set_begin(end);
  bucket_.set_end(header_.bucket_tokens() > 0 ? end + header_.bucket_tokens() : 2 * end);
}

void ScoreCall::OnCompleted(const CompletedEvent& completed) {
  {
    MutexLock lock(&mu_);
    id_ = 0;
  }
  if (bucket_.num_tokens() > 0) CloseBucket();
  v1::ScoreEvent event;
  v1::ScoreCompleted* out = event.mutable_completed();
  out->set_num_tokens(static_cast<uint64_t>(completed.usage.prompt_tokens));
  out->set_log_likelihood(log_likelihood_);
  ToProto(completed.memory, out->mutable_memory());
  writes_.Push(std::move(event));
  writes_.Finish(grpc::Status::OK);
}

void ScoreCall::Abandon(const absl::Status& reason) {
  MutexLock lock(&mu_);
  if (id_ != 0) context_->engine()->Cancel(id_, reason);
  id_ = 0;
}

void ScoreCall::Tick(SteadyTime now) {
  if (reader_.MustAbort(now)) {
    const absl::Status slow = absl::AbortedError(
        absl::StrCat("the client has read nothing for ", reader_.patience().count(), " s"));
    writes_.Abort(ToGrpcStatus(slow, {"SLOW_CONSUMER", {}, {}}));
    Abandon(slow);
  }
  MutexLock lock(&mu_);
  if (!done_ && reader_.MustCancel(now)) rpc_->TryCancel();
}

void ScoreCall::Stop(const absl::Status& status) { End(status); }

void ScoreCall::End(const absl::Status& reason) {
  writes_.Finish(ToGrpcStatus(reason));
  Abandon(reason);
}

void ScoreCall::OnWriteDone(bool ok) {
  context_->pump.Run(shared_from_this(), [&] {
    reader_.OnWriteDone();
    writes_.OnWriteDone(ok);
    if (!ok) return Abandon(absl::CancelledError("the client is gone"));
    MaybeRead();
  });
}

void ScoreCall::OnCancel() {
  context_->pump.Run(shared_from_this(), [&] { End(absl::CancelledError("the client is gone")); });
}

void ScoreCall::OnDone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
    memory_ = {};
  }
  CatchErrors([&] { KeepRecord(*listed_, end_, context_); }).IgnoreError();
  context_->pump.Unregister(self_);
  std::shared_ptr<ScoreCall> last = std::move(self_);
  last->context_->streams.Remove();
}

}  // namespace folio::server
