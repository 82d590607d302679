#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "folio/v1/inference.pb.h"
#include "server/event_pump.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Inference.Score stream. The next part is read only when most of what came before is scored,
// so that a text of any length needs bounded memory. Holds itself until OnDone.
class ScoreCall final : public grpc::ServerBidiReactor<v1::ScoreRequest, v1::ScoreEvent>,
                        public PumpTarget,
                        public std::enable_shared_from_this<ScoreCall> {
 public:
  static ScoreCall* Start(ServiceContext* context);

  // PumpTarget.
  void Handle(Event event) override;
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status& status) override;

 private:
  explicit ScoreCall(ServiceContext* context);

  // Reactions, on gRPC threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

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

  // Reads the next part if few enough tokens wait.
  void MaybeRead();
  void OnScored(const ScoredEvent& scored);
  void CloseBucket();
  void OnCompleted(const CompletedEvent& completed);
  // Stops the engine's part, once.
  void Abandon(const absl::Status& reason);

  ServiceContext* const context_;
  Engine* const engine_;  // nullptr: refused at once
  const SteadyTime arrived_;
  WriteQueue<v1::ScoreEvent> writes_;
  std::shared_ptr<ScoreCall> self_;
  v1::ScoreRequest request_;  // owned by the read in flight or by Process

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
  bool reads_ FOLIO_GUARDED_BY(mu_) = false;       // a read or its processing is under way
  bool all_received_ FOLIO_GUARDED_BY(mu_) = false;
};

}  // namespace folio::server
