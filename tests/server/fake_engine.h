#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/runtime/document_directory.h"
#include "engine/runtime/engine.h"
#include "tests/server/fake_tokenizer.h"

namespace folio::testing {

// Says what it was compiled of, and constrains nothing.
class FakeGrammar final : public AnswerGrammar {
 public:
  explicit FakeGrammar(GrammarSource source) : source_(std::move(source)) {}

  const GrammarSource& source() const { return source_; }
  std::unique_ptr<AnswerState> Begin(const std::vector<int32_t>&) const override { return nullptr; }
  int64_t bytes() const override { return 0; }

 private:
  const GrammarSource source_;
};

// An engine that does what a test tells it: requests wait until the test emits their events. Its
// documents are the real directory's and its checks the real ones;
// tests/engine/engine_contract_test holds it to the real engine. Thread-safe.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(const EngineOptions& options = {});
  // Fails what runs with UNAVAILABLE, like the real one.
  ~FakeEngine() override;

  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const FakeTokenizer& fake_tokenizer() const { return tokenizer_; }

  // Knows "full" and "lm_infinite" with window 1..512 (default 512), num_sinks and distance_limit;
  // and the adapter "poet".
  absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                 const PositionRequest& request) const override;
  // Refuses a source with "(" and no ")".
  absl::StatusOr<std::shared_ptr<const AnswerGrammar>> CompileGrammar(
      const GrammarSource& source) const override;
  absl::Status CheckQueue(const TenantPtr&) const override;
  absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) override;
  // A byte for each token, 1000 of which fit now, and a second more until the first one comes; half
  // of one in the queue.
  absl::StatusOr<Estimate> EstimateRequest(GenerateSpec spec) const override;
  absl::StatusOr<Estimate> EstimateDocument(const AttentionSpec& attention, int64_t num_tokens,
                                            const Payer& payer) const override;
  // Answers with Failed, in the phase of the last event.
  void Cancel(RequestId id, absl::Status reason) override;
  void HoldBack(RequestId id) override;
  void LetGoOn(RequestId id) override;

  // Scores every token as it comes, with -1.
  absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention, const Payer& payer,
                                      std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) override;
  void FinishScore(RequestId id) override;
  // A token is a byte.
  absl::Status CheckDocumentSize(const AttentionSpec& attention, int64_t num_bytes) const override;
  absl::StatusOr<DocumentInfo> OpenDocument(const std::string& id, const AttentionSpec& attention,
                                            std::shared_ptr<DocumentAttachment> attachment,
                                            const Payer& payer) override;
  absl::Status FollowDocument(const DocumentHandle& handle,
                              std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens,
                                int64_t text_bytes) override;
  // Prefills the document at once unless it is held.
  absl::Status FinishDocument(const DocumentHandle& handle) override;
  absl::Status FailDocument(const DocumentHandle& handle, const absl::Status& error) override;
  void PauseDocument(const DocumentHandle& handle) override;
  // There is no --kv-dir unless SaveDocuments says what happens, at once.
  absl::Status SaveDocument(const DocumentHandle& handle) override;
  // Done at once, with what UpdateDocuments says; or never.
  absl::Status UpdateDocument(const DocumentHandle& handle,
                              absl::FunctionRef<void(DocumentAttributes*)> change,
                              Updated done) override;
  std::vector<DocumentHandle> ExpiredDocuments() const override { return directory_.Expired(); }
  absl::Status DeleteDocument(const DocumentHandle& handle) override;
  std::optional<DocumentInfo> GetDocument(const std::string& id) const override {
    return directory_.Find(id);
  }
  std::vector<DocumentInfo> ListDocuments(const std::string& after, size_t count) const override {
    return directory_.List(after, count);
  }
  DocumentCounts CountDocuments() const override { return directory_.Count(); }
  EngineStats Stats() const override;
  std::vector<TenantUse> TenantUses() const override;
  void StopAdmission() override;

  // For the test.
  void set_stats(const EngineStats& stats);
  void set_tenant_uses(std::vector<TenantUse> uses);
  // Of all that come from now on, before they are read.
  void RefuseQueue(absl::Status status);
  void RefuseSubmit(absl::Status status) { RefuseSubmitAfter(0, std::move(status)); }
  // So many are taken first.
  void RefuseSubmitAfter(int count, absl::Status status);
  void RefuseDocumentSizes(absl::Status status);
  // What SaveDocument gives: bytes on disk, or why there are none; nullopt: it does not end.
  void SaveDocuments(std::optional<absl::StatusOr<int64_t>> stored_bytes);
  void WaitForSave();
  // What becomes of updates; nullopt: they do not end.
  void UpdateDocuments(std::optional<absl::Status> written);
  // The calendar of its documents goes forward.
  void PassTime(std::chrono::seconds time) { passed_us_ += time / std::chrono::microseconds(1); }
  void HoldPrefill();
  // Cancellations have no effect any more.
  void Freeze();
  // Requests are answered at once: about a document with its text, others with "answer".
  void AnswerAtOnce();
  // Blocks until `count` requests came in; the spec of the last one of them.
  GenerateSpec WaitForRequest(RequestId count = 1);
  // Emits for request 1 unless told otherwise; nothing after the last event.
  void Emit(Event event, RequestId id = 1);
  // What the events say becomes the state of the document.
  void EmitToDocument(const std::string& id, Event event);
  // Blocks until the request was cancelled; the reason.
  absl::Status WaitForCancel(RequestId id = 1);
  // Blocks until the request is held back, or no more.
  void WaitForHeldBack(bool held_back, RequestId id = 1);
  bool IsHeldBack(RequestId id = 1) const;
  // Whether there is room for tokens that are appended; while there is none, their document is
  // short of it.
  void SetRoom(bool room);
  // Blocks until AppendToDocument was called so often, whatever came of it.
  void WaitForAppends(int count);
  void WaitForPause(const std::string& id);
  bool IsPaused(const std::string& id) const;
  void WaitForState(const std::string& id, DocumentState state);
  std::vector<int32_t> DocumentTokens(const std::string& id) const;
  int num_running() const;
  void WaitForDrain();

 private:
  struct Request {
    GenerateSpec spec;
    std::shared_ptr<EventSink> sink;  // nullptr once ended
    Phase phase = Phase::kQueued;
    std::optional<absl::Status> cancelled;
    bool held_back = false;
  };
  // Beside what the directory knows.
  struct Document {
    std::vector<int32_t> tokens;
    std::shared_ptr<EventSink> sink;
    bool paused = false;
  };
  absl::Status CheckServing() const FOLIO_REQUIRES(mu_);
  RequestId Add(GenerateSpec spec, std::shared_ptr<EventSink> sink) FOLIO_REQUIRES(mu_);
  // nullptr if there is none, or it has ended.
  Request* Running(RequestId id) FOLIO_REQUIRES(mu_);
  const Document& DocumentOf(const std::string& id) const FOLIO_REQUIRES(mu_);
  void Drop(const DocumentHandle& handle, const absl::Status& reason) FOLIO_REQUIRES(mu_);
  static void EmitTo(Request* request, Event event);

  int64_t NowUs() const;

  const int64_t max_context_tokens_;
  std::atomic<int64_t> passed_us_{0};
  EngineInfo info_;
  const FakeTokenizer tokenizer_;
  DocumentDirectory directory_;
  mutable Mutex mu_;
  CondVar changed_;
  std::map<RequestId, Request> requests_ FOLIO_GUARDED_BY(mu_);
  std::map<uint64_t, Document> documents_ FOLIO_GUARDED_BY(mu_);  // by incarnation
  EngineStats stats_ FOLIO_GUARDED_BY(mu_);
  std::vector<TenantUse> tenant_uses_ FOLIO_GUARDED_BY(mu_);
  absl::Status queue_status_ FOLIO_GUARDED_BY(mu_);
  absl::Status submit_status_ FOLIO_GUARDED_BY(mu_);
  int num_before_refusal_ FOLIO_GUARDED_BY(mu_) = 0;
  absl::Status size_status_ FOLIO_GUARDED_BY(mu_);
  bool stores_ FOLIO_GUARDED_BY(mu_) = false;
  int num_saves_ FOLIO_GUARDED_BY(mu_) = 0;
  std::optional<absl::StatusOr<int64_t>> saved_ FOLIO_GUARDED_BY(mu_);
  std::optional<absl::Status> updated_ FOLIO_GUARDED_BY(mu_) = absl::OkStatus();
  bool hold_prefill_ FOLIO_GUARDED_BY(mu_) = false;
  bool room_ FOLIO_GUARDED_BY(mu_) = true;
  bool frozen_ FOLIO_GUARDED_BY(mu_) = false;
  bool answers_at_once_ FOLIO_GUARDED_BY(mu_) = false;
  bool draining_ FOLIO_GUARDED_BY(mu_) = false;
  int num_appends_ FOLIO_GUARDED_BY(mu_) = 0;
};

}  // namespace folio::testing
