#include "server/answer_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "server/request_id.h"
#include "server/request_mapping.h"
#include "server/rpc_deadline.h"
#include "server/sampling_mapping.h"

namespace folio::server {
namespace {

constexpr uint32_t kDefaultHeartbeatMs = 5000;

// At most, for one that is not read: it may be text or, in each byte, an id.
template <typename Wire>
int64_t MemoryFor(const Incoming<typename Wire::Request>& incoming, const Tokenizer& tokenizer) {
  if (incoming.is_read()) return Wire::MemoryFor(incoming.message(), tokenizer);
  constexpr size_t kOfId = sizeof(uint32_t) + sizeof(int32_t);
  const size_t most = 1 + std::max(kOfId, tokenizer.encode_bytes_per_byte());
  return static_cast<int64_t>(most * incoming.bytes());
}

v1::GenerateEvent AcceptedEvent(const GenerateQuestion& question) {
  const GenerateSpec& spec = question.spec;
  v1::GenerateEvent event;
  v1::Accepted* accepted = event.mutable_accepted();
  *accepted->mutable_strategy() = server::ToProto(spec.attention.strategy);
  *accepted->mutable_position() = server::ToProto(spec.attention.position);
  *accepted->mutable_sampling() = server::ToProto(spec.sampling);
  accepted->set_max_new_tokens(static_cast<uint32_t>(spec.stop.max_new_tokens));
  accepted->set_prompt_tokens(static_cast<uint64_t>(question.prompt_tokens()));
  accepted->set_format(question.format);
  accepted->set_adapter(spec.attention.adapter.name);
  return event;
}

}  // namespace

// What the engine tells one of the answers.
template <typename Wire>
class AnswerCall<Wire>::Target final : public PumpTarget {
 public:
  Target(std::shared_ptr<AnswerCall> call, size_t index) : call_(std::move(call)), index_(index) {}
  void Handle(Event event) override { call_->HandleOf(index_, event); }
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status& status) override { call_->Stop(status); }

 private:
  const std::shared_ptr<AnswerCall> call_;
  const size_t index_;
};

template <typename Wire>
AnswerCall<Wire>* AnswerCall<Wire>::Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                                          Caller caller, const Incoming<Request>* incoming) {
  std::shared_ptr<AnswerCall> call(new AnswerCall(context, rpc, std::move(caller), incoming));
  const auto cancel = [weak = std::weak_ptr(call)](const absl::Status& status) {
    const auto running = weak.lock();
    if (running == nullptr) return;
    running->context_->pump.Run(running, [&] { running->EndEarly(status); });
  };
  call->listed_ =
      context->calls.Add({Wire::kName, call->caller_.address, call->caller_.owner, call->arrived_,
                          context->TraceOf(*rpc), call->deadline_, call->caller_.identity},
                         cancel);
  call->listed_->SetRequestId(call->request_id_);
  call->self_ = call;
  context->streams.Add();
  const absl::Status begun = CatchErrors([&] { call->Begin(); });
  if (!begun.ok()) call->OnPrepareFailed(begun);
  return call.get();
}

template <typename Wire>
AnswerCall<Wire>::AnswerCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
                             Caller caller, const Incoming<Request>* incoming)
    : context_(context),
      rpc_(rpc),
      incoming_(incoming),
      caller_(std::move(caller)),
      deadline_(DeadlineOf(*rpc)),
      arrived_(context->clock()),
      writes_({.write =
                   [this](const typename Wire::Event* event) {
                     reader_.OnWriteStarted(context_->clock());
                     this->StartWrite(event);
                   },
               .finish =
                   [this](grpc::Status status) {
                     end_ = SendTrailers(status, *listed_, rpc_);
                     this->Finish(std::move(status));
                   },
               .merge = Wire::Merge}),
      reader_(std::chrono::seconds(context->options.requests.slow_reader_seconds)),
      last_event_(arrived_) {}

template <typename Wire>
void AnswerCall<Wire>::Note(const Request& request) {
  const v1::GenerateRequest& shared = Wire::Shared(request);
  request_id_ = RequestIdFor(shared.request_id());
  has_document_ = shared.has_document();
  listed_->SetRequestId(request_id_);
  listed_->SetDocumentId(shared.document().document_id());
  const v1::ResponseOptions& response = shared.response();
  wants_spans_ = response.evidence_spans() > 0;
  heartbeat_ = std::chrono::milliseconds(response.has_heartbeat_interval_ms()
                                             ? response.heartbeat_interval_ms()
                                             : kDefaultHeartbeatMs);
}

template <typename Wire>
void AnswerCall<Wire>::Begin() {
  if (incoming_->is_read()) Note(incoming_->message());
  if (grpc::Status refused = context_->BeginPreparation(caller_.tenant, &preparing_);
      !refused.ok()) {
    return writes_.Finish(std::move(refused));
  }
  const int64_t bytes = MemoryFor<Wire>(*incoming_, context_->engine()->tokenizer());
  if (grpc::Status refused = context_->TakeMemory(caller_, bytes, &memory_); !refused.ok()) {
    preparing_.reset();
    return writes_.Finish(std::move(refused));
  }
  const auto call = this->shared_from_this();
  context_->pump.Register(call);
  // A constraint may take long to compile.
  const bool is_constrained =
      incoming_->is_read() && Wire::Shared(incoming_->message()).has_constraint();
  const PromptPool::Lane lane =
      is_constrained ? PromptPool::Lane::kLong : PromptPool::LaneFor(incoming_->bytes());
  context_->pool.Post(lane, caller_.tenant->name,
                      {[call] { call->Prepare(); },
                       [call](const absl::Status& status) { call->OnPrepareFailed(status); }});
}

template <typename Wire>
void AnswerCall<Wire>::Prepare() {
  std::vector<GenerateQuestion> questions;
  grpc::Status status = Read(&questions);
  preparing_.reset();  // from here on the engine counts it
  if (status.ok()) status = Submit(std::move(questions));
  if (!status.ok()) writes_.Finish(std::move(status));
}

template <typename Wire>
void AnswerCall<Wire>::OnPrepareFailed(const absl::Status& status) {
  preparing_.reset();
  writes_.Finish(ToGrpcStatus(status));  // first: it needs no memory
  context_->pump.Run(this->shared_from_this(), [&] {
    EndEarly(status);  // it may be submitted
    context_->metrics->OnFailed(status, "tokenise");
  });
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::StatusWhileReading(const absl::Status& reason) const {
  context_->metrics->OnFailed(reason, "tokenise");
  return ToGrpcStatus(reason, {{}, {{"phase", "tokenise"}}, {}});
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::Read(std::vector<GenerateQuestion>* questions) {
  if (const auto reason = end_reason()) return StatusWhileReading(*reason);
  const bool was_read = incoming_->is_read();
  if (grpc::Status bad = incoming_->Read(); !bad.ok()) return bad;
  const Request& request = incoming_->message();
  if (!was_read) Note(request);
  if (grpc::Status bad = Wire::Check(request); !bad.ok()) return bad;
  const int64_t bytes = Wire::MemoryFor(request, context_->engine()->tokenizer());
  if (bytes > memory_.bytes()) {
    memory_ = {};
    if (grpc::Status bad = context_->TakeMemory(caller_, bytes, &memory_); !bad.ok()) return bad;
  }
  memory_.ShrinkTo(bytes);
  grpc::Status read = ReadQuestions(questions);
  if (const auto reason = end_reason()) return StatusWhileReading(*reason);
  return read;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::ReadQuestions(std::vector<GenerateQuestion>* questions) {
  const Request& request = incoming_->message();
  const auto interrupt = [this] { return end_reason().value_or(absl::OkStatus()); };
  answers_.resize(static_cast<size_t>(Wire::NumAnswers(request)));
  questions->resize(answers_.size());
  v1::GenerateRequest made;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const int index = static_cast<int>(i);
    answers_[i].place = Wire::PlaceOf(request, index);
    if (const uint32_t answer = answers_[i].place.answer; answer > 0) {
      (*questions)[i] = (*questions)[i - answer];
      (*questions)[i].spec.sampling.seed = SeedOf(Wire::Shared(request).sampling(), answer);
      continue;
    }
    grpc::Status bad =
        ReadGenerateRequest(Wire::Of(request, index, &made), *context_->engine(), context_->options,
                            caller_.owner, interrupt, &(*questions)[i]);
    if (!bad.ok()) return Wire::About(answers_[i].place, bad);
  }
  return grpc::Status::OK;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::Submit(std::vector<GenerateQuestion> questions) {
  size_t num_tokens = 0;
  for (const GenerateQuestion& question : questions) num_tokens += question.spec.tokens.size();
  memory_.ShrinkTo(
      static_cast<int64_t>(incoming_->message().SpaceUsedLong() + sizeof(int32_t) * num_tokens));
  // Under the lock, so that a cancellation either comes before (nothing is submitted) or finds the
  // ids, and that the events of requests wait behind Accepted: the pump takes the lock too.
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) return StatusWhileReading(*end_reason_);
  if (grpc::Status refused = context_->TakeRequests(caller_, static_cast<int64_t>(questions.size()),
                                                    static_cast<int64_t>(num_tokens));
      !refused.ok()) {
    return refused;
  }
  ids_.reserve(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const grpc::Status refused = SubmitOne(std::move(questions[i]), i);
    if (refused.ok()) continue;
    const absl::Status reason = absl::AbortedError("another question of the call was refused");
    for (const RequestId id : ids_) context_->engine()->Cancel(id, reason);
    return Wire::About(answers_[i].place, refused);
  }
  return grpc::Status::OK;
}

template <typename Wire>
grpc::Status AnswerCall<Wire>::SubmitOne(GenerateQuestion question, size_t index) {
  GenerateSpec& spec = question.spec;
  Answer& answer = answers_[index];
  spec.tenant = caller_.tenant;
  spec.num_answers = Wire::AnswersPerPrompt(incoming_->message());
  if (answer.place.answer > 0) spec.first_answer = ids_[index - answer.place.answer];
  if (deadline_ != std::chrono::system_clock::time_point::max()) {
    spec.deadline = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        deadline_ - std::chrono::system_clock::now());
  }
  answer.strategy = spec.attention.strategy.name;
  listed_->SetStrategy(answer.strategy);
  answer.metrics = context_->metrics->ForStrategy(answer.strategy);
  v1::GenerateEvent accepted = AcceptedEvent(question);
  if (question.document.has_value()) answer.upload = DocumentUpload::Of(*question.document);
  const auto target = std::make_shared<Target>(this->shared_from_this(), index);
  const auto id = context_->engine()->Submit(std::move(spec), context_->pump.SinkFor(target));
  if (!id.ok()) return context_->Refusal(id.status());
  ids_.push_back(*id);
  listed_->AddEngineRequest(*id);
  listed_->EnterPhase(CallPhase::kQueued, context_->clock());
  listed_->AddPromptTokens(accepted.accepted().prompt_tokens());
  listed_->AddMaxNewTokens(accepted.accepted().max_new_tokens());
  context_->metrics->OnAccepted(answer.strategy);
  Send(&answer, std::move(accepted));
  return grpc::Status::OK;
}

template <typename Wire>
void AnswerCall<Wire>::Send(Answer* answer, v1::GenerateEvent event) {
  event.set_request_id(request_id_);
  event.set_sequence(answer->next_sequence);
  last_event_ = context_->clock();
  if (writes_.Push(Wire::Wrap(answer->place, std::move(event)))) ++answer->next_sequence;
}

template <typename Wire>
void AnswerCall<Wire>::Stop(const absl::Status& status) {
  EndEarly(status);
  if (!submitted()) return;
  // An engine that hangs would not say so.
  writes_.Finish(ToGrpcStatus(status, {{}, {{"phase", PhaseName(phase())}}, {}}));
}

template <typename Wire>
void AnswerCall<Wire>::EndEarly(const absl::Status& reason) {
  MutexLock lock(&mu_);
  if (end_reason_.has_value()) return;
  // Before the note: if it throws, the next reason cancels. While preparing, the pool thread finds
  // the note.
  for (const RequestId id : ids_) context_->engine()->Cancel(id, reason);
  end_reason_ = reason;
}

template <typename Wire>
std::optional<absl::Status> AnswerCall<Wire>::end_reason() const {
  MutexLock lock(&mu_);
  return end_reason_;
}

template <typename Wire>
void AnswerCall<Wire>::OnWriteDone(bool ok) {
  context_->pump.Run(this->shared_from_this(), [&] {
    reader_.OnWriteDone();
    writes_.OnWriteDone(ok);
    if (!ok) EndEarly(absl::CancelledError("the client is gone"));
  });
}

template <typename Wire>
void AnswerCall<Wire>::OnCancel() {
  context_->pump.Run(this->shared_from_this(), [&] {
    // gRPC cancels calls whose deadline has passed, too.
    EndEarly(std::chrono::system_clock::now() >= deadline_
                 ? absl::DeadlineExceededError("the deadline has passed")
                 : absl::CancelledError("the client cancelled the request"));
  });
}

template <typename Wire>
void AnswerCall<Wire>::OnDone() {
  {
    MutexLock lock(&mu_);
    done_ = true;
  }
  CatchErrors([&] { KeepRecord(*listed_, end_, context_); }).IgnoreError();
  context_->pump.Unregister(self_);
  std::shared_ptr<AnswerCall> last = std::move(self_);
  last->context_->streams.Remove();
}

template class AnswerCall<GenerateWire>;
template class AnswerCall<AskManyWire>;

}  // namespace folio::server
