#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "folio/v1/inference.pb.h"
#include "server/answer_wire.h"
#include "server/auth/caller.h"
#include "server/call_end.h"
#include "server/call_registry.h"
#include "server/document_upload.h"
#include "server/event_pump.h"
#include "server/generate_request.h"
#include "server/incoming.h"
#include "server/reader_watch.h"
#include "server/request_id.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One stream of Inference.Generate or AskMany, a state machine:
//
//   preparing ──Submit──▶ submitted ──each answer Completed or Failed──▶ finishing ──▶ done
//        └── refused, cancelled, stopped ─────────────────────────────────▶┘
//
// While preparing, a prompt pool thread reads the request and alone may finish the call, so that
// the request stays readable; a cancellation leaves a note. From Submit on everything comes from
// the engine through the pump, cancellations too. Holds itself until OnDone; every other holder has
// a shared_ptr.
template <typename Wire>
class AnswerCall final : public grpc::ServerWriteReactor<typename Wire::Event>,
                         public PumpTarget,
                         public std::enable_shared_from_this<AnswerCall<Wire>> {
 public:
  using Request = typename Wire::Request;

  // Starts the call and returns its reactor. `context` outlives it; `rpc` and `request` are gRPC's.
  static AnswerCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller,
                           const Incoming<Request>* request);

  // PumpTarget. Events come for single answers.
  void Handle(Event) override {}
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

 private:
  // One answer. The pool thread until Accepted is sent, then the pump thread.
  struct Answer {
    AnswerPlace place;
    std::string strategy;
    std::shared_ptr<DocumentUpload> upload;  // of the document; null: inline prompt
    const StrategyMetrics* metrics = nullptr;
    uint64_t next_sequence = 0;
    Phase phase = Phase::kQueued;
    DocumentUse document_use = DocumentUse::kNone;
    SteadyTime last_token{};
    int64_t num_computed = 0;  // tokens of its prompt, as the engine last said
    bool ended = false;
  };
  class Target;

  AnswerCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller,
             const Incoming<Request>* incoming);

  // Reactions, on gRPC threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Refuses the call or has the pool prepare it.
  void Begin();
  // What is kept of the request beside its questions. REQUIRES: it is read.
  void Note(const Request& request);
  // On a prompt pool thread. Not OK: the call is finished with that status.
  void Prepare();
  // The rest of Begin or Prepare has thrown.
  void OnPrepareFailed(const absl::Status& status);
  // Checked and tokenised.
  grpc::Status Read(std::vector<GenerateQuestion>* questions);
  grpc::Status ReadQuestions(std::vector<GenerateQuestion>* questions);
  grpc::Status Submit(std::vector<GenerateQuestion> questions);
  grpc::Status SubmitOne(GenerateQuestion question, size_t index) FOLIO_REQUIRES(mu_);

  // On the pump thread.
  void HandleOf(size_t index, const Event& event);
  void OnDelta(Answer* answer, const DeltaEvent& delta, SteadyTime now);
  void OnEvidence(Answer* answer, const EvidenceEvent& evidence);
  void OnCompleted(Answer* answer, const CompletedEvent& completed, SteadyTime now);
  void OnFailed(Answer* answer, const FailedEvent& failed);
  // The call ends with its last answer.
  void EndAnswer(Answer* answer, const grpc::Status& status);
  // Holds the requests back while the client does not read, and ends them in the end.
  void CheckReader(SteadyTime now);
  // Notes the phase of an answer, and with it that of the call.
  void EnterPhase(Answer* answer, Phase phase, SteadyTime now);
  void SetHeldBack(bool held_back);
  void AbortSlowReader();
  // Of the first that has not ended.
  Answer* Running();
  Phase phase();

  // In any state. Only the first reason counts.
  void EndEarly(const absl::Status& reason);
  std::optional<absl::Status> end_reason() const;
  grpc::Status StatusWhileReading(const absl::Status& reason) const;
  bool submitted() const;
  void Send(Answer* answer, v1::GenerateEvent event);

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;   // valid until OnDone
  const Incoming<Request>* const incoming_;  // valid while preparing
  const Caller caller_;
  const std::chrono::system_clock::time_point deadline_;
  const SteadyTime arrived_;
  // Written while preparing, read afterwards.
  std::string request_id_ = RequestIdFor("");  // of a call that is refused unread
  bool has_document_ = false;
  bool wants_spans_ = false;
  std::chrono::milliseconds heartbeat_{};
  MemoryBudget::Share memory_;
  ClientShares::Share preparing_;
  std::vector<Answer> answers_;  // as many as there will be before the first is submitted

  WriteQueue<typename Wire::Event> writes_;
  ReaderWatch reader_;
  std::shared_ptr<AnswerCall> self_;
  std::unique_ptr<RunningCall> listed_;
  CallEnd end_;  // written when the stream is finished, read by OnDone

  // The pool thread until Accepted is sent, then the pump thread.
  SteadyTime last_event_;

  // Pump thread only.
  bool saw_accepted_ = false;
  bool held_back_ = false;
  size_t num_ended_ = 0;
  size_t num_completed_ = 0;
  grpc::Status first_failure_;

  mutable Mutex mu_;
  std::vector<RequestId> ids_ FOLIO_GUARDED_BY(mu_);  // of what was submitted
  std::optional<absl::Status> end_reason_ FOLIO_GUARDED_BY(mu_);
  bool done_ FOLIO_GUARDED_BY(mu_) = false;  // gRPC's objects are gone
};

using GenerateCall = AnswerCall<GenerateWire>;
using AskManyCall = AnswerCall<AskManyWire>;

}  // namespace folio::server
