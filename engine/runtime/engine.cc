#include "engine/runtime/engine.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/base/catch_errors.h"
#include "engine/base/mutex.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_thread.h"
#include "engine/runtime/loaded_model.h"
#include "engine/runtime/stored_entry.h"
#include "engine/runtime/transformer_runner.h"

namespace folio {
namespace {

// Counts one for as long as it lives.
struct Uncount {
  void operator()(std::atomic<int>* count) const { count->fetch_sub(1); }
};
using Counted = std::unique_ptr<std::atomic<int>, Uncount>;

Counted CountIn(std::atomic<int>* count) {
  count->fetch_add(1);
  return Counted(count);
}

// How commands fail: what they were for ends with the status.
auto FailRequest(RequestId id) {
  return [id](EngineLoop& loop, const absl::Status& status) { loop.Cancel(id, status); };
}
auto FailRequest(RequestId id, std::shared_ptr<EventSink> sink) {
  return [id, sink = std::move(sink)](EngineLoop& loop, const absl::Status& status) {
    if (!loop.Cancel(id, status)) sink->OnEvent(FailedEvent{status, Phase::kQueued});
  };
}
auto FailDocumentOf(const DocumentHandle& handle) {
  return [handle](EngineLoop& loop, const absl::Status& status) {
    loop.documents().Fail(handle, status);
  };
}

// Checks calls and posts what they mean to the engine thread.
class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<LoadedModel> model)
      : options_(options),
        model_(std::move(model)),
        directory_({options.max_documents, options.max_context_tokens}),
        runner_(model_->transformer.get()),
        loop_({.scheduler = model_->scheduler,
               .model = model_->attention,
               .max_running_requests = options.max_running_requests,
               .vocab_size = model_->config.shape.vocab_size,
               .on_device_failure = options.on_device_failure},
              model_->store.get(), &runner_, &directory_, keeper()),
        thread_(&loop_, model_->store.get()) {
    if (keeper() == nullptr) return;
    RestoreDocuments();
    keeper()->Start([this](EngineCommands commands) { thread_.PostMade(std::move(commands)); });
  }
  ~EngineImpl() override {
    thread_.Stop();
    if (keeper() != nullptr) keeper()->Stop();  // what was ordered is done, and told to nobody
  }

  const EngineInfo& info() const override { return model_->info; }
  const Tokenizer& tokenizer() const override { return *model_->tokenizer; }

  absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                 const PositionRequest& request) const override {
    return folio::ResolveAttention(spec, info().default_attention.strategy, model_->attention,
                                   request);
  }

  absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) override;
  void Cancel(RequestId id, absl::Status reason) override;
  void HoldBack(RequestId id) override {
    thread_.Post({[id](EngineLoop& loop) { loop.HoldBack(id); }});
  }
  void LetGoOn(RequestId id) override {
    thread_.Post({[id](EngineLoop& loop) { loop.LetGoOn(id); }});
  }
  absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention,
                                      std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) override;
  void FinishScore(RequestId id) override;
  absl::Status CheckDocumentSize(const AttentionSpec& attention, int64_t num_bytes) const override;
  absl::StatusOr<DocumentInfo> OpenDocument(
      const std::string& id, const AttentionSpec& attention,
      std::shared_ptr<DocumentAttachment> attachment) override;
  absl::Status FollowDocument(const DocumentHandle& handle,
                              std::shared_ptr<EventSink> sink) override;
  absl::Status AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens) override;
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
    stats.waiting = std::max(stats.waiting, num_posted_.load(std::memory_order_relaxed));
    if (keeper() != nullptr) CountStored(&stats);
    return stats;
  }

  void StopAdmission() override { draining_.store(true); }

 private:
  // Null: documents are not stored.
  DocumentKeeper* keeper() const { return model_->keeper.get(); }
  // Those that an earlier process has stored are there.
  void RestoreDocuments();
  void CountStored(EngineStats* stats) const;
  // For whoever writes them to disk.
  DocumentKeeper::ChangeAttributes AttributesOf(const DocumentHandle& handle) const {
    return
        [this, handle](DocumentAttributes* stored) { directory_.CopyAttributes(handle, stored); };
  }
  absl::Status CheckServing() const;
  // The request and `document_tokens` before it, which the spec's plan may cut.
  absl::Status CheckMemory(const GenerateSpec& spec, const AttentionPlan& plan,
                           int64_t document_tokens) const;
  absl::StatusOr<AttentionSpec> ResolveUnknownLength(const AttentionSpec& attention) const;

  const EngineOptions options_;
  const std::unique_ptr<LoadedModel> model_;
  DocumentDirectory directory_;
  ClientShares shares_;
  TransformerRunner runner_;
  EngineLoop loop_;

  std::atomic<bool> draining_{false};
  std::atomic<RequestId> next_id_{1};
  // Requests posted whose command has not run yet.
  std::atomic<int> num_posted_{0};

  // Held from the change of a document's state until its command is posted: the engine thread sees
  // commands in the order of the states.
  Mutex order_mu_;

  EngineThread thread_;  // last: stops before anything it uses goes
};

void EngineImpl::RestoreDocuments() {
  for (const DocumentStore::ManifestPtr& manifest : keeper()->List()) {
    DocumentDirectory::Stored stored =
        StoredEntryOf(*manifest, *keeper(), info().default_attention,
                      [this](const AttentionSpec& spec) { return ResolveUnknownLength(spec); });
    if (options_.restore_attachment) {
      stored.attachment = options_.restore_attachment(
          {manifest->name, manifest->upload_token, manifest->created_us, manifest->text_bytes},
          *model_->tokenizer);
    }
    directory_.AddStored(stored);
  }
}

void EngineImpl::CountStored(EngineStats* stats) const {
  const StoreUsage usage = keeper()->usage();
  stats->stored_documents = usage.num_documents;
  stats->stored_bytes = usage.bytes.total();
  stats->documents_quarantined = usage.num_quarantined;
  const DocumentKeeper::Counts counts = keeper()->counts();
  stats->document_saves = counts.saves;
  stats->document_save_failures = counts.save_failures;
  stats->document_loads = counts.loads;
}

absl::Status EngineImpl::CheckServing() const {
  if (draining_.load()) return absl::UnavailableError("the server is draining");
  return absl::OkStatus();
}

absl::Status EngineImpl::CheckMemory(const GenerateSpec& spec, const AttentionPlan& plan,
                                     int64_t document_tokens) const {
  const int64_t max_new_tokens = spec.stop.max_new_tokens;
  const int64_t num_prompt = document_tokens + static_cast<int64_t>(spec.tokens.size());
  const int64_t num_kept = NumKeptTokens(plan.truncation, num_prompt, max_new_tokens);
  const int64_t num_shared = plan.truncation.enabled() ? 0 : document_tokens;
  const int64_t bytes = model_->store->BytesNeeded(plan, num_kept + max_new_tokens,
                                                   model_->scheduler.step_tokens, num_shared);
  return CheckCapacity(spec.attention, num_prompt + max_new_tokens, bytes,
                       model_->store->capacity_bytes(), model_->attention);
}

absl::StatusOr<RequestId> EngineImpl::Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_RETURN_IF_ERROR(CheckRequest(spec, info().shape.vocab_size));
  MutexLock lock(&order_mu_);
  int64_t document_tokens = 0;
  if (spec.document.has_value()) {
    FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(*spec.document));
    FOLIO_RETURN_IF_ERROR(CheckFinished(document));
    document_tokens = document.known_tokens;
  }
  const int64_t total =
      document_tokens + static_cast<int64_t>(spec.tokens.size()) + spec.stop.max_new_tokens;
  FOLIO_ASSIGN_OR_RETURN(spec.attention,
                         ResolveAttention(spec.attention, {total, spec.document.has_value()}));
  FOLIO_RETURN_IF_ERROR(
      CheckLength("the prompt with max_new_tokens", total, options_.max_context_tokens));
  const AttentionPlan plan = PlanFor(spec.attention, model_->attention);
  FOLIO_RETURN_IF_ERROR(CheckEvidence(spec, plan, model_->attention));
  FOLIO_RETURN_IF_ERROR(CheckMemory(spec, plan, document_tokens));
  if (num_posted_.load() >= NumAdmissible(thread_.Stats(), options_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue of ", options_.max_queued_requests, " requests is full"));
  }
  ClientShares::Share share;
  if (!spec.client.empty()) {
    const int most = MostOfClient(options_);
    share = shares_.Join(spec.client, most);
    if (share == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(most,
                       " requests of one client wait or run; the other places are kept for "
                       "other clients"));
    }
  }
  if (spec.document.has_value() && directory_.Touch(*spec.document)) {
    keeper()->UpdateAttributes(*spec.document, AttributesOf(*spec.document));
  }
  const RequestId id = next_id_.fetch_add(1);
  auto generation = std::make_unique<Generation>(std::move(spec), sink, *model_->tokenizer,
                                                 info().eos_tokens, std::move(share));
  auto submit = [id, generation = std::move(generation),
                 posted = CountIn(&num_posted_)](EngineLoop& loop) mutable {
    posted.reset();
    loop.Submit(id, std::move(generation));
  };
  thread_.Post({std::move(submit), FailRequest(id, std::move(sink))});
  return id;
}

void EngineImpl::Cancel(RequestId id, absl::Status reason) {
  thread_.Post({[id, reason](EngineLoop& loop) { loop.Cancel(id, reason); }});
}

absl::StatusOr<AttentionSpec> EngineImpl::ResolveUnknownLength(
    const AttentionSpec& attention) const {
  FOLIO_ASSIGN_OR_RETURN(AttentionSpec resolved, ResolveAttention(attention, {}));
  FOLIO_RETURN_IF_ERROR(CheckUnknownLength(resolved, PlanFor(resolved, model_->attention)));
  return resolved;
}

absl::StatusOr<RequestId> EngineImpl::OpenScore(const AttentionSpec& attention,
                                                std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(AttentionSpec resolved, ResolveUnknownLength(attention));
  const RequestId id = next_id_.fetch_add(1);
  const auto open = [id, resolved, sink](EngineLoop& loop) {
    loop.scorings().Open(id, resolved, sink);
  };
  thread_.Post({open, FailRequest(id, sink)});
  return id;
}

absl::Status EngineImpl::AppendToScore(RequestId id, std::vector<int32_t> tokens) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens, info().shape.vocab_size));
  auto append = [id, tokens = std::move(tokens)](EngineLoop& loop) {
    loop.scorings().Append(id, tokens);
  };
  thread_.Post({std::move(append), FailRequest(id)});
  return absl::OkStatus();
}

void EngineImpl::FinishScore(RequestId id) {
  const auto finish = [id](EngineLoop& loop) { loop.scorings().Finish(id); };
  thread_.Post({finish, FailRequest(id)});
}

absl::Status EngineImpl::CheckDocumentSize(const AttentionSpec& attention,
                                           int64_t num_bytes) const {
  const auto most = static_cast<int64_t>(tokenizer().max_bytes_per_token());
  if (most == 0) return absl::OkStatus();
  const int64_t min_tokens = num_bytes / most;
  FOLIO_RETURN_IF_ERROR(
      CheckLength(absl::StrCat("a document of ", num_bytes,
                               " bytes, even in the longest tokens that there are,"),
                  min_tokens, options_.max_context_tokens));
  const int64_t bytes = model_->store->BytesNeeded(PlanFor(attention, model_->attention),
                                                   min_tokens, model_->scheduler.step_tokens, 0);
  return CheckCapacity(attention, min_tokens, bytes, model_->store->capacity_bytes(),
                       model_->attention);
}

absl::StatusOr<DocumentInfo> EngineImpl::OpenDocument(
    const std::string& id, const AttentionSpec& attention,
    std::shared_ptr<DocumentAttachment> attachment) {
  MutexLock lock(&order_mu_);
  if (std::optional<DocumentInfo> document = directory_.Find(id)) return *std::move(document);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec resolved, ResolveUnknownLength(attention));
  FOLIO_ASSIGN_OR_RETURN(DocumentInfo document,
                         directory_.Create(id, resolved, std::move(attachment)));
  absl::Cleanup forget = [&] { directory_.Remove(document.handle).IgnoreError(); };
  const auto create = [handle = document.handle, resolved](EngineLoop& loop) {
    loop.documents().Create(handle, resolved);
  };
  thread_.Post({create, FailDocumentOf(document.handle)});
  std::move(forget).Cancel();
  return document;
}

absl::Status EngineImpl::FollowDocument(const DocumentHandle& handle,
                                        std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  MutexLock lock(&order_mu_);
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(handle));
  FOLIO_RETURN_IF_ERROR(CheckUploading(document));
  const auto follow = [handle, sink](EngineLoop& loop) { loop.documents().Follow(handle, sink); };
  const auto fail = [sink](EngineLoop&, const absl::Status& status) {
    sink->OnEvent(FailedEvent{status, Phase::kPrefill});
  };
  thread_.Post({follow, fail});
  return absl::OkStatus();
}

absl::Status EngineImpl::AppendToDocument(const DocumentHandle& handle,
                                          std::vector<int32_t> tokens) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens, info().shape.vocab_size));
  const int64_t count = std::ssize(tokens);
  auto run = [handle, tokens = std::move(tokens)](EngineLoop& loop) {
    loop.documents().Append(handle, tokens);
  };
  auto append = OneCommand({std::move(run), FailDocumentOf(handle)});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.AddTokens(handle, count));
  thread_.PostMade(std::move(append));
  return absl::OkStatus();
}

absl::Status EngineImpl::FinishDocument(const DocumentHandle& handle) {
  const auto run = [handle](EngineLoop& loop) { loop.documents().Finish(handle); };
  auto finish = OneCommand({run, FailDocumentOf(handle)});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.FinishUpload(handle));
  thread_.PostMade(std::move(finish));
  return absl::OkStatus();
}

absl::Status EngineImpl::FailDocument(const DocumentHandle& handle, const absl::Status& error) {
  auto drop =
      OneCommand({[handle, error](EngineLoop& loop) { loop.documents().Drop(handle, error); }});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Fail(handle, error));
  thread_.PostMade(std::move(drop));
  return absl::OkStatus();
}

void EngineImpl::PauseDocument(const DocumentHandle& handle) {
  thread_.Post({[handle](EngineLoop& loop) { loop.documents().Pause(handle); }});
}

absl::Status EngineImpl::SaveDocument(const DocumentHandle& handle) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(handle));
  if (keeper() == nullptr) {
    return absl::FailedPreconditionError(
        "documents are not stored: the server was started without --kv-dir");
  }
  FOLIO_RETURN_IF_ERROR(CheckFinished(document));
  if (document.saved) return absl::OkStatus();
  EngineCommands save = OneCommand({[handle](EngineLoop& loop) { loop.documents().Save(handle); }});
  directory_.ForgetSaveError(handle);
  thread_.PostMade(std::move(save));
  return absl::OkStatus();
}

absl::Status EngineImpl::UpdateDocument(const DocumentHandle& handle,
                                        absl::FunctionRef<void(DocumentAttributes*)> change,
                                        Updated done) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.UpdateAttributes(handle, change));
  if (document.saved) {
    keeper()->UpdateAttributes(handle, AttributesOf(handle), done);
  } else {
    done(absl::OkStatus());  // they are written with it
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::DeleteDocument(const DocumentHandle& handle) {
  const absl::Status reason =
      absl::NotFoundError(absl::StrCat("document ", Quoted(handle.id), " was deleted"));
  auto drop =
      OneCommand({[handle, reason](EngineLoop& loop) { loop.documents().Delete(handle, reason); }});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Remove(handle));
  thread_.PostMade(std::move(drop));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, LoadModel(options));
  std::unique_ptr<Engine> engine;
  FOLIO_RETURN_IF_ERROR(
      CatchErrors([&] { engine = std::make_unique<EngineImpl>(options, std::move(model)); }));
  return engine;
}

}  // namespace folio
