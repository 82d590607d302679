#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "tests/server/fake_tokenizer.h"

namespace folio::testing {

// An engine that does what a test tells it: requests wait until the test emits their events.
// Thread-safe.
class FakeEngine final : public Engine {
 public:
  FakeEngine();
  // Fails what runs with UNAVAILABLE, like the real one.
  ~FakeEngine() override;

  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const FakeTokenizer& fake_tokenizer() const { return tokenizer_; }

  // Knows "full" and "lm_infinite" with window 1..512 (default 512), num_sinks and distance_limit.
  absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                 const PositionRequest& request) const override;
  absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) override;
  // Answers with Failed, in the phase of the last event.
  void Cancel(RequestId id, absl::Status reason) override;

  absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention,
                                      std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) override;
  void FinishScore(RequestId id) override;
  absl::Status OpenDocument(const std::string& id, const AttentionSpec& attention,
                            std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToDocument(const std::string& id, std::vector<int32_t> tokens) override;
  // Prefills the document at once unless it is held.
  absl::Status FinishDocument(const std::string& id) override;
  void PauseDocument(const std::string& id) override;
  absl::Status DeleteDocument(const std::string& id) override;
  std::optional<DocumentInfo> GetDocument(const std::string& id) const override;
  std::vector<DocumentInfo> ListDocuments() const override;
  EngineStats Stats() const override;
  void StopAdmission() override;

  // For the test.
  void set_stats(const EngineStats& stats);
  void RefuseSubmit(absl::Status status);
  void HoldPrefill();
  // Blocks until `count` requests came in; the spec of the last one of them.
  GenerateSpec WaitForRequest(RequestId count = 1);
  // Emits for request 1 unless told otherwise; nothing after the last event.
  void Emit(Event event, RequestId id = 1);
  void EmitToDocument(const std::string& id, Event event);
  // Blocks until the request was cancelled; the reason.
  absl::Status WaitForCancel(RequestId id = 1);
  void WaitForPause(const std::string& id);
  void WaitForFinish(const std::string& id);
  void WaitForDeletion(const std::string& id);
  std::vector<int32_t> DocumentTokens(const std::string& id) const;
  int num_running() const;
  void WaitForDrain();

 private:
  struct Request {
    GenerateSpec spec;
    std::shared_ptr<EventSink> sink;  // nullptr once ended
    Phase phase = Phase::kQueued;
    std::optional<absl::Status> cancelled;
  };
  struct Document {
    DocumentInfo info;
    std::vector<int32_t> tokens;
    std::shared_ptr<EventSink> sink;
    bool paused = false;
  };
  void EmitLocked(Request* request, Event event);

  EngineInfo info_;
  FakeTokenizer tokenizer_;
  mutable std::mutex mu_;  // guards the rest
  std::condition_variable changed_;
  std::map<RequestId, Request> requests_;
  std::map<std::string, Document> documents_;
  EngineStats stats_;
  absl::Status submit_status_;
  bool hold_prefill_ = false;
  bool draining_ = false;
};

}  // namespace folio::testing
