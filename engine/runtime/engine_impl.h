#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/runtime/document_directory.h"
#include "engine/runtime/document_keeper.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/engine_loop.h"
#include "engine/runtime/engine_thread.h"
#include "engine/runtime/loaded_model.h"
#include "engine/runtime/transformer_runner.h"

namespace folio {

// Checks calls and posts what they mean to the engine thread.
class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<LoadedModel> model)
      : options_(options),
        model_(std::move(model)),
        directory_(
            {.max_documents = options.max_documents,
             .max_tokens = options.max_context_tokens,
             .max_pinned_bytes = MaxPinnedBytes(),
             .stored_bytes_per_token = keeper() == nullptr ? 0 : DocumentKeeper::kBytesPerToken,
             .on_change = options.on_document_change}),
        grammars_(model_->tokenizer.get(), model_->config.shape.vocab_size),
        runner_(model_->transformer.get()),
        loop_({.scheduler = model_->scheduler,
               .model = model_->attention,
               .max_running_requests = options.max_running_requests,
               .vocab_size = model_->config.shape.vocab_size,
               .on_device_failure = options.on_device_failure,
               .slow_step_seconds = options.slow_step_seconds,
               .on_slow_step = options.on_slow_step},
              model_->store.get(), &runner_, &directory_, keeper()),
        thread_(&loop_, model_->store.get()) {
    if (keeper() == nullptr) return;
    std::vector<DocumentHandle> incomplete = RestoreDocuments();
    keeper()->Start([this](EngineCommands commands) { thread_.PostMade(std::move(commands)); });
    thread_.Post({[incomplete = std::move(incomplete)](EngineLoop& loop) mutable {
      loop.documents().CompleteLater(std::move(incomplete));
    }});
  }
  ~EngineImpl() override;

  const EngineInfo& info() const override { return model_->info; }
  const Tokenizer& tokenizer() const override { return *model_->tokenizer; }

  absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                 const PositionRequest& request) const override {
    return folio::ResolveAttention(spec, info().default_attention.strategy, model_->attention,
                                   request);
  }

  absl::StatusOr<std::shared_ptr<const AnswerGrammar>> CompileGrammar(
      const GrammarSource& source) const override {
    return grammars_.Compile(source);
  }

  absl::Status CheckQueue(const TenantPtr& tenant) const override;
  absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) override;
  absl::StatusOr<Estimate> EstimateRequest(GenerateSpec spec) const override;
  absl::StatusOr<Estimate> EstimateDocument(const AttentionSpec& attention, int64_t num_tokens,
                                            const Payer& payer) const override;
  void Cancel(RequestId id, absl::Status reason) override;
  void HoldBack(RequestId id) override {
    thread_.Post({[id](EngineLoop& loop) { loop.HoldBack(id); }});
  }
  void LetGoOn(RequestId id) override {
    thread_.Post({[id](EngineLoop& loop) { loop.LetGoOn(id); }});
  }
  absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention, const Payer& payer,
                                      std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) override;
  void FinishScore(RequestId id) override;
  absl::Status CheckDocumentSize(const AttentionSpec& attention, int64_t num_bytes) const override;
  absl::StatusOr<DocumentInfo> OpenDocument(const std::string& id, const AttentionSpec& attention,
                                            std::shared_ptr<DocumentAttachment> attachment,
                                            const Payer& payer) override;
  absl::Status FollowDocument(const DocumentHandle& handle,
                              std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens,
                                int64_t text_bytes) override;
  absl::Status FinishDocument(const DocumentHandle& handle) override;
  absl::Status FailDocument(const DocumentHandle& handle, const absl::Status& error) override;
  void PauseDocument(const DocumentHandle& handle) override;
  absl::Status SaveDocument(const DocumentHandle& handle) override;
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

  EngineStats Stats() const override {
    EngineStats stats = thread_.Stats();
    if (keeper() != nullptr) CountStored(&stats);
    return stats;
  }

  std::vector<TenantUse> TenantUses() const override;

  void StopAdmission() override { draining_.store(true); }

 private:
  // Null: documents are not stored.
  DocumentKeeper* keeper() const { return model_->keeper.get(); }
  // Those that an earlier process has stored are there. Returns those whose cache is to be
  // completed though nobody asks, the one that was used last at the end.
  std::vector<DocumentHandle> RestoreDocuments();
  bool LacksCache(const Manifest& manifest, const DocumentDirectory::Stored& stored) const;
  void CountStored(EngineStats* stats) const;
  // For whoever writes them to disk.
  DocumentKeeper::ChangeAttributes AttributesOf(const DocumentHandle& handle) const {
    return
        [this, handle](DocumentAttributes* stored) { directory_.CopyAttributes(handle, stored); };
  }
  // Of stored documents, so that there is room for others. Without a disk pins keep no bytes there.
  int64_t MaxPinnedBytes() const {
    return keeper() == nullptr ? std::numeric_limits<int64_t>::max() : keeper()->quota_bytes() / 2;
  }
  absl::Status CheckServing() const;
  // A request that may be queued, but for the memory that it needs.
  struct Checked {
    std::optional<DocumentInfo> document;
    int64_t prompt_tokens = 0;  // with the document
    int64_t total_tokens = 0;   // with the longest answer, after truncation
    int64_t shared_tokens = 0;  // whose cache is the document's, or made for the first answer
    int64_t prefill_tokens = 0;
    int64_t needed_bytes = 0;  // of the budget, beside the document
  };
  // Resolves its attention. Errors: those of Submit.
  absl::StatusOr<Checked> Check(GenerateSpec* spec) const;
  // A request as a forecast sees it.
  LoadItem ItemOf(const GenerateSpec& spec, const Checked& checked,
                  const AnswerLengths& lengths) const;
  // Whether one more could run or wait.
  absl::Status CheckPlaces() const;
  // Check, and whether the cache and the queue have room for it.
  absl::StatusOr<Checked> CheckAdmission(GenerateSpec* spec) const;
  // FAILED_PRECONDITION if its answer is expected to end after its deadline.
  absl::Status CheckDeadline(const GenerateSpec& spec, const Checked& checked) const;
  // RESOURCE_EXHAUSTED with the bound that it would be beyond.
  absl::Status JoinQueue(const GenerateSpec& spec, const Checked& checked,
                         TenantAccounts::Ticket* ticket);
  // Of the budget, for a sequence under an attention.
  int64_t BytesNeeded(const AttentionSpec& attention, int64_t num_tokens,
                      int64_t shared_tokens) const;
  KvFootprint FootprintOfDocument(const AttentionSpec& attention, int64_t num_tokens) const;
  // Whether a question under the attention finds the document's cache in the pools. Those that
  // questions have made are not known here.
  static bool HasCache(const DocumentInfo& document, const AttentionSpec& attention);
  // Whether there is memory for so many bytes.
  void JudgeFit(int64_t needed_bytes, Estimate* estimate) const;
  absl::StatusOr<AttentionSpec> ResolveUnknownLength(const AttentionSpec& attention) const;

  const EngineOptions options_;
  std::unique_ptr<LoadedModel> model_;
  DocumentDirectory directory_;
  mutable GrammarCompiler grammars_;  // a cache
  TransformerRunner runner_;
  mutable EngineLoop loop_;  // its accounts are any thread's

  std::atomic<bool> draining_{false};
  std::atomic<RequestId> next_id_{1};

  // Held from the change of a document's state until its command is posted: the engine thread sees
  // commands in the order of the states.
  Mutex order_mu_;

  EngineThread thread_;  // last: stops before anything it uses goes
};

}  // namespace folio
