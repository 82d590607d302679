#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/base/mutex.h"
#include "folio/v1/inference.pb.h"
#include "server/document_upload.h"
#include "server/event_pump.h"
#include "server/generate_request.h"
#include "server/incoming.h"
#include "server/reader_watch.h"
#include "server/request_id.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Inference.Generate stream, a state machine:
//
//   preparing ──Submit──▶ submitted ──Completed, Failed──▶ finishing ──▶ done
//        └── refused, cancelled, stopped ──────────────────▶┘
//
// While preparing, a prompt pool thread reads the request and alone may finish the call, so that
// the request stays readable; a cancellation leaves a note. From Submit on everything comes from
// the engine through the pump, cancellations too. Holds itself until OnDone; every other holder has
// a shared_ptr.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateEvent>,
                           public PumpTarget,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // Starts the call and returns its reactor. `context` outlives it; `rpc` and `request` are gRPC's.
  static GenerateCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                             const Incoming<v1::GenerateRequest>* request);

  // PumpTarget.
  void Handle(Event event) override;
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

 private:
  GenerateCall(ServiceContext* context, grpc::CallbackServerContext* rpc,
               const Incoming<v1::GenerateRequest>* incoming);

  // Reactions, on gRPC threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Refuses the call or has the pool prepare it.
  void Begin();
  // What is kept of the request beside its question. REQUIRES: it is read.
  void Note(const v1::GenerateRequest& request);
  // On a prompt pool thread. Not OK: the call is finished with that status.
  void Prepare();
  // The rest of Begin or Prepare has thrown.
  void OnPrepareFailed(const absl::Status& status);
  // Checked and tokenised.
  grpc::Status Read(GenerateQuestion* question);
  grpc::Status Submit(GenerateQuestion question);
  v1::GenerateEvent AcceptedEvent(const GenerateQuestion& question) const;

  // On the pump thread.
  void OnDelta(const DeltaEvent& delta, SteadyTime now);
  void OnEvidence(const EvidenceEvent& evidence);
  void OnCompleted(const CompletedEvent& completed, SteadyTime now);
  void OnFailed(const FailedEvent& failed);
  // Holds the request back while the client does not read, and ends it in the end.
  void CheckReader(SteadyTime now);
  void SetHeldBack(bool held_back);
  void AbortSlowReader();

  // In any state. Only the first reason counts.
  void EndEarly(const absl::Status& reason);
  std::optional<absl::Status> end_reason() const;
  void Send(v1::GenerateEvent event);

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;               // valid until OnDone
  const Incoming<v1::GenerateRequest>* const incoming_;  // valid while preparing
  const std::string client_;
  const std::chrono::system_clock::time_point deadline_;
  const SteadyTime arrived_;
  // Written while preparing, read afterwards.
  std::string request_id_ = RequestIdFor("");  // of a call that is refused unread
  bool has_document_ = false;
  bool wants_spans_ = false;
  std::chrono::milliseconds heartbeat_{};
  std::string strategy_;
  std::shared_ptr<DocumentUpload> upload_;  // of the document; null: inline prompt
  MemoryBudget::Share memory_;
  ClientShares::Share preparing_;
  const StrategyMetrics* metrics_ = nullptr;

  WriteQueue<v1::GenerateEvent> writes_;
  ReaderWatch reader_;
  std::shared_ptr<GenerateCall> self_;

  // The pool thread until Accepted is sent, then the pump thread.
  uint64_t next_sequence_ = 0;
  SteadyTime last_event_;

  // Pump thread only.
  bool saw_accepted_ = false;
  Phase phase_ = Phase::kQueued;
  DocumentUse document_use_ = DocumentUse::kNone;
  SteadyTime last_token_{};
  bool held_back_ = false;

  mutable Mutex mu_;
  RequestId id_ FOLIO_GUARDED_BY(mu_) = 0;  // 0: not submitted
  std::optional<absl::Status> end_reason_ FOLIO_GUARDED_BY(mu_);
  bool done_ FOLIO_GUARDED_BY(mu_) = false;  // gRPC's objects are gone
};

}  // namespace folio::server
