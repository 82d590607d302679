#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "folio/v1/inference.pb.h"
#include "server/auth/caller.h"
#include "server/call_end.h"
#include "server/call_registry.h"
#include "server/event_pump.h"
#include "server/incoming.h"
#include "server/reader_watch.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Inference.Score stream. The next part is read only when most of what came before is scored
// and the client has read most of its scores, so that a text of any length needs bounded memory.
// Holds itself until OnDone.
class ScoreCall final : public grpc::ServerBidiReactor<Incoming<v1::ScoreRequest>, v1::ScoreEvent>,
                        public PumpTarget,
                        public std::enable_shared_from_this<ScoreCall> {
 public:
  static ScoreCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller);

  // PumpTarget.
  void Handle(Event event) override;
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

 private:
  ScoreCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller);

  // Reactions, on gRPC threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnPart();
  void OnHalfClose();

  // On a prompt pool thread, one after the other.
  void Process();
  grpc::Status Dispatch();
  grpc::Status OnHeader(const v1::ScoreHeader& header);
  grpc::Status OnText(const std::string& text);
  grpc::Status OnTokenIds(const v1::TokenIds& ids);
  grpc::Status Append(std::vector<int32_t> tokens);
  // The client has sent everything.
  void Complete();
  grpc::Status FinishText();

  // Has the pool do `work` on the part that was read, or on the end of the text.
  void PostWork(size_t bytes, void (ScoreCall::*work)());
  void Refuse(const grpc::Status& status);
  // Ends the call and the engine's part.
  void End(const absl::Status& reason);

  // Reads the next part if few enough tokens and scores wait.
  void MaybeRead();
  // Keeps of memory_ what the tokens that wait need.
  void GiveBackMemory() FOLIO_REQUIRES(mu_);
  void OnScored(const ScoredEvent& scored);
  void CloseBucket();
  void OnCompleted(const CompletedEvent& completed);
  // Stops the engine's part, once.
  void Abandon(const absl::Status& reason);

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;  // valid until OnDone
  const Caller caller_;
  const SteadyTime arrived_;
  WriteQueue<v1::ScoreEvent> writes_;
  ReaderWatch reader_;
  std::shared_ptr<ScoreCall> self_;
  std::unique_ptr<RunningCall> listed_;
  CallEnd end_;                         // written when the stream is finished, read by OnDone
  Incoming<v1::ScoreRequest> request_;  // owned by the read in flight or by Process

  // Prompt pool threads, one after the other.
  std::optional<StreamingTokenizer> tokenizer_;  // set by the header
  v1::ScoreHeader header_;
  bool begun_ = false;     // the first tokens are in
  bool saw_text_ = false;  // so no ids may come

  // Pump thread only.
  v1::ScoreBucket bucket_;
  double log_likelihood_ = 0;

  Mutex mu_;
  RequestId id_ FOLIO_GUARDED_BY(mu_) = 0;         // 0: not open, or over
  int64_t num_waiting_ FOLIO_GUARDED_BY(mu_) = 0;  // tokens appended and not scored
  // Of the request in Process, and of the tokens that wait.
  MemoryBudget::Share memory_ FOLIO_GUARDED_BY(mu_);
  bool done_ FOLIO_GUARDED_BY(mu_) = false;   // gRPC's objects are gone
  bool reads_ FOLIO_GUARDED_BY(mu_) = false;  // a read or its processing is under way
  bool all_received_ FOLIO_GUARDED_BY(mu_) = false;
};

}  // namespace folio::server
