#include "engine/runtime/engine.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/engine_thread.h"
#include "engine/runtime/loaded_model.h"
#include "engine/runtime/transformer_runner.h"

namespace folio {
namespace {

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<LoadedModel> model)
      : options_(options),
        model_(std::move(model)),
        runner_(model_->transformer.get()),
        loop_({.scheduler = model_->scheduler,
               .model = model_->attention,
               .max_running_requests = options.max_running_requests,
               .vocab_size = model_->config.shape.vocab_size,
               .on_device_failure = options.on_device_failure},
              model_->store.get(), &runner_),
        thread_(&loop_, model_->store.get()) {}

  const EngineInfo& info() const override { return model_->info; }
  const Tokenizer& tokenizer() const override { return *model_->tokenizer; }

  absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                 const PositionRequest& request) const override {
    return folio::ResolveAttention(spec, info().default_attention.strategy, model_->attention,
                                   request);
  }

  absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) override;
  void Cancel(RequestId id, absl::Status reason) override;
  absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention,
                                      std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) override;
  void FinishScore(RequestId id) override;
  absl::Status OpenDocument(const std::string& id, const AttentionSpec& attention,
                            std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToDocument(const std::string& id, std::vector<int32_t> tokens) override;
  absl::Status FinishDocument(const std::string& id) override;
  void PauseDocument(const std::string& id) override;
  absl::Status DeleteDocument(const std::string& id) override;
  std::optional<DocumentInfo> GetDocument(const std::string& id) const override;
  std::vector<DocumentInfo> ListDocuments() const override;

  EngineStats Stats() const override {
    EngineStats stats = thread_.Stats();
    stats.waiting = std::max(stats.waiting, num_posted_.load(std::memory_order_relaxed));
    return stats;
  }

  void StopAdmission() override { draining_.store(true); }

 private:
  // What the front door knows of a document; the engine thread knows the rest.
  struct DocumentEntry {
    AttentionSpec attention;
    bool finished = false;
    int64_t known_tokens = 0;
  };

  absl::Status CheckTokens(const std::vector<int32_t>& tokens) const;
  absl::Status CheckRequest(const GenerateSpec& spec, int64_t document_tokens) const;
  absl::Status CheckAdmission() const;
  // The entry of an unfinished document.
  absl::StatusOr<DocumentEntry*> Unfinished(const std::string& id);
  DocumentInfo Describe(const std::string& id, const DocumentEntry& entry) const;

  const EngineOptions options_;
  const std::unique_ptr<LoadedModel> model_;
  TransformerRunner runner_;
  EngineLoop loop_;

  std::atomic<bool> draining_{false};
  std::atomic<RequestId> next_id_{1};
  // Requests posted whose command has not run yet.
  std::atomic<int> num_posted_{0};

  mutable std::mutex mu_;
  std::map<std::string, DocumentEntry>
      documents_;  // guarded by mu_; commands are posted under it too

  EngineThread thread_;  // last: stops before anything it uses goes
};

absl::Status EngineImpl::CheckTokens(const std::vector<int32_t>& tokens) const {
  const int32_t vocab = info().shape.vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", tokens[i], " at index ", i,
                                                     " is not in the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::CheckAdmission() const {
  if (draining_.load()) return absl::UnavailableError("the server is draining");
  return absl::OkStatus();
}

absl::Status EngineImpl::CheckRequest(const GenerateSpec& spec, int64_t document_tokens) const {
  if (spec.tokens.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (spec.stop.max_new_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", spec.stop.max_new_tokens, ", must be at least 1"));
  }
  FOLIO_RETURN_IF_ERROR(CheckTokens(spec.tokens));
  FOLIO_RETURN_IF_ERROR(CheckTokens(spec.stop.stop_token_ids));
  const int64_t total =
      document_tokens + static_cast<int64_t>(spec.tokens.size()) + spec.stop.max_new_tokens;
  if (total > options_.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and max_new_tokens are ", total,
                                                   " tokens, the limit is ",
                                                   options_.max_context_tokens));
  }
  const AttentionPlan plan = PlanFor(spec.attention, model_->attention);
  const bool truncated = plan.truncation.enabled();
  const int64_t num_kept =
      NumKeptTokens(plan.truncation, total - spec.stop.max_new_tokens, spec.stop.max_new_tokens);
  if ((spec.max_evidence_spans > 0 || spec.layer_evidence) && !plan.selection.enabled()) {
    return absl::UnimplementedError(absl::StrCat(
        spec.attention.strategy.name,
        " cannot give evidence: its heads choose no parts of the text. Only long_heads "
        "can; full, truncation, sliding_window, streaming, lm_infinite and rerope "
        "cannot"));
  }
  const int64_t bytes =
      model_->store->BytesNeeded(plan, num_kept + spec.stop.max_new_tokens,
                                 model_->scheduler.step_tokens, truncated ? 0 : document_tokens);
  if (bytes > model_->store->capacity_bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat(total, " tokens under ", spec.attention.strategy.name, " need ", bytes,
                     " bytes of KV cache, this server has ", model_->store->capacity_bytes(),
                     ": use lm_infinite, shorten the prompt, or raise --kv-bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> EngineImpl::Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckAdmission());
  std::lock_guard<std::mutex> lock(mu_);
  int64_t document_tokens = 0;
  if (!spec.document_id.empty()) {
    const auto it = documents_.find(spec.document_id);
    if (it == documents_.end()) {
      return absl::NotFoundError(absl::StrCat("no document '", spec.document_id, "'"));
    }
    if (!it->second.finished) {
      return absl::FailedPreconditionError(
          absl::StrCat("the upload of document '", spec.document_id, "' is not finished"));
    }
    document_tokens = it->second.known_tokens;
  }
  const PositionRequest request = {
      document_tokens + static_cast<int64_t>(spec.tokens.size()) + spec.stop.max_new_tokens,
      !spec.document_id.empty()};
  FOLIO_ASSIGN_OR_RETURN(spec.attention, ResolveAttention(spec.attention, request));
  FOLIO_RETURN_IF_ERROR(CheckRequest(spec, document_tokens));
  const int waiting = thread_.Stats().waiting + num_posted_.load();
  if (waiting >= options_.max_queued_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue of ", options_.max_queued_requests, " requests is full"));
  }
  const RequestId id = next_id_.fetch_add(1);
  num_posted_.fetch_add(1);
  auto generation = std::make_shared<std::unique_ptr<Generation>>(std::make_unique<Generation>(
      std::move(spec), std::move(sink), *model_->tokenizer, info().eos_tokens));
  thread_.Post([this, id, generation](EngineLoop& loop) {
    num_posted_.fetch_sub(1);
    loop.Submit(id, std::move(*generation));
  });
  return id;
}

void EngineImpl::Cancel(RequestId id, absl::Status reason) {
  thread_.Post([id, reason](EngineLoop& loop) { loop.Cancel(id, reason); });
}

absl::StatusOr<RequestId> EngineImpl::OpenScore(const AttentionSpec& attention,
                                                std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckAdmission());
  FOLIO_ASSIGN_OR_RETURN(AttentionSpec resolved, ResolveAttention(attention, {}));
  if (PlanFor(resolved, model_->attention).truncation.enabled()) {
    return absl::InvalidArgumentError(absl::StrCat(
        resolved.strategy.name, " cuts prompts of a known length; a scored stream has none"));
  }
  const RequestId id = next_id_.fetch_add(1);
  thread_.Post([id, resolved, sink = std::move(sink)](EngineLoop& loop) {
    loop.scorings().Open(id, resolved, sink);
  });
  return id;
}

absl::Status EngineImpl::AppendToScore(RequestId id, std::vector<int32_t> tokens) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens));
  thread_.Post(
      [id, tokens = std::move(tokens)](EngineLoop& loop) { loop.scorings().Append(id, tokens); });
  return absl::OkStatus();
}

void EngineImpl::FinishScore(RequestId id) {
  thread_.Post([id](EngineLoop& loop) { loop.scorings().Finish(id); });
}

absl::Status EngineImpl::OpenDocument(const std::string& id, const AttentionSpec& attention,
                                      std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckAdmission());
  FOLIO_ASSIGN_OR_RETURN(AttentionSpec resolved, ResolveAttention(attention, {}));
  if (PlanFor(resolved, model_->attention).truncation.enabled()) {
    return absl::InvalidArgumentError(
        absl::StrCat(resolved.strategy.name,
                     " cuts the prompt of each question; upload under another strategy and name "
                     "it in the question"));
  }
  std::lock_guard<std::mutex> lock(mu_);
  const auto [it, is_new] = documents_.try_emplace(id, DocumentEntry{.attention = resolved});
  if (!is_new && it->second.finished) {
    return absl::AlreadyExistsError(absl::StrCat("document '", id, "' exists and is finished"));
  }
  if (!is_new && it->second.attention != resolved) {
    return absl::InvalidArgumentError(
        absl::StrCat("document '", id, "' was begun with another strategy or position scheme"));
  }
  thread_.Post([id, resolved, sink = std::move(sink)](EngineLoop& loop) {
    loop.documents().Open(id, resolved, sink);
  });
  return absl::OkStatus();
}

absl::StatusOr<EngineImpl::DocumentEntry*> EngineImpl::Unfinished(const std::string& id) {
  const auto it = documents_.find(id);
  if (it == documents_.end()) return absl::NotFoundError(absl::StrCat("no document '", id, "'"));
  if (it->second.finished) {
    return absl::FailedPreconditionError(absl::StrCat("document '", id, "' is finished"));
  }
  return &it->second;
}

absl::Status EngineImpl::AppendToDocument(const std::string& id, std::vector<int32_t> tokens) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens));
  std::lock_guard<std::mutex> lock(mu_);
  FOLIO_ASSIGN_OR_RETURN(DocumentEntry * entry, Unfinished(id));
  const int64_t total = entry->known_tokens + static_cast<int64_t>(tokens.size());
  if (total > options_.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the document has ", total, " tokens, the limit is ", options_.max_context_tokens));
  }
  entry->known_tokens = total;
  thread_.Post(
      [id, tokens = std::move(tokens)](EngineLoop& loop) { loop.documents().Append(id, tokens); });
  return absl::OkStatus();
}

absl::Status EngineImpl::FinishDocument(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  FOLIO_ASSIGN_OR_RETURN(DocumentEntry * entry, Unfinished(id));
  if (entry->known_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("document '", id, "' is empty"));
  }
  entry->finished = true;
  thread_.Post([id](EngineLoop& loop) { loop.documents().Finish(id); });
  return absl::OkStatus();
}

void EngineImpl::PauseDocument(const std::string& id) {
  thread_.Post([id](EngineLoop& loop) { loop.documents().Pause(id); });
}

absl::Status EngineImpl::DeleteDocument(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  if (documents_.erase(id) == 0) {
    return absl::NotFoundError(absl::StrCat("no document '", id, "'"));
  }
  thread_.Post([id](EngineLoop& loop) { loop.documents().Delete(id); });
  return absl::OkStatus();
}

DocumentInfo EngineImpl::Describe(const std::string& id, const DocumentEntry& entry) const {
  DocumentInfo info;
  info.id = id;
  info.attention = entry.attention;
  info.finished = entry.finished;
  info.known_tokens = entry.known_tokens;
  if (const auto progress = thread_.Progress(id)) {
    info.prefilled_tokens = progress->prefilled_tokens;
    info.kv_bytes = progress->kv_bytes;
    info.summary_bytes = progress->summary_bytes;
    info.status = progress->status;
  }
  return info;
}

std::optional<DocumentInfo> EngineImpl::GetDocument(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  if (it == documents_.end()) return std::nullopt;
  return Describe(id, it->second);
}

std::vector<DocumentInfo> EngineImpl::ListDocuments() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<DocumentInfo> list;
  for (const auto& [id, entry] : documents_) list.push_back(Describe(id, entry));
  return list;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, LoadModel(options));
  return std::make_unique<EngineImpl>(options, std::move(model));
}

}  // namespace folio
