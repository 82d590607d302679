// The front door: requests and scored streams.
#include "engine/runtime/engine.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/prompt_truncation.h"
#include "engine/base/catch_errors.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/shared_prompts.h"
#include "engine/runtime/shortage.h"

namespace folio {
namespace {

// How commands fail: what they were for ends with the status.
auto FailRequest(RequestId id) {
  return [id](EngineLoop& loop, const absl::Status& status) { loop.Cancel(id, status); };
}
auto FailRequest(RequestId id, std::shared_ptr<EventSink> sink) {
  return [id, sink = std::move(sink)](EngineLoop& loop, const absl::Status& status) {
    if (!loop.Cancel(id, status)) sink->OnEvent(FailedEvent{status, Phase::kQueued});
  };
}

// Until the process ends: threads that hang in the disk may still use it.
void KeepForGood(std::unique_ptr<LoadedModel> model) {
  static Mutex* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<LoadedModel>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(model));
}

}  // namespace

// What was ordered of the disk is done, and told to nobody. Where the disk hangs, its threads
// cannot be ended: what they use stays until the process ends.
EngineImpl::~EngineImpl() {
  thread_.Stop();
  const bool kept = keeper() == nullptr || keeper()->Stop(options_.read_deadline);
  const auto end = std::chrono::steady_clock::now() + options_.read_deadline;
  if (kept && (model_->home == nullptr || model_->home->AwaitIdle(end))) return;
  KeepForGood(std::move(model_));
}

absl::Status EngineImpl::CheckServing() const {
  if (draining_.load()) return absl::UnavailableError("the server is draining");
  return absl::OkStatus();
}

int64_t EngineImpl::BytesNeeded(const AttentionSpec& attention, int64_t num_tokens,
                                int64_t shared_tokens) const {
  return model_->store->BytesNeeded(PlanFor(attention, model_->attention), num_tokens,
                                    model_->scheduler.step_tokens, shared_tokens);
}

absl::StatusOr<EngineImpl::Checked> EngineImpl::Check(GenerateSpec* spec) const {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_RETURN_IF_ERROR(CheckRequest(*spec, info().shape.vocab_size));
  Checked checked;
  int64_t document_tokens = 0;
  if (spec->document.has_value()) {
    FOLIO_ASSIGN_OR_RETURN(checked.document, directory_.Get(*spec->document));
    FOLIO_RETURN_IF_ERROR(CheckFinished(*checked.document));
    document_tokens = checked.document->known_tokens;
  }
  const int64_t max_new_tokens = spec->stop.max_new_tokens;
  checked.prompt_tokens = document_tokens + std::ssize(spec->tokens);
  const int64_t total = checked.prompt_tokens + max_new_tokens;
  FOLIO_ASSIGN_OR_RETURN(spec->attention,
                         ResolveAttention(spec->attention, {total, spec->document.has_value()}));
  FOLIO_RETURN_IF_ERROR(
      CheckLength("the prompt with max_new_tokens", total, options_.max_context_tokens));
  const AttentionPlan plan = PlanFor(spec->attention, model_->attention);
  FOLIO_RETURN_IF_ERROR(CheckEvidence(*spec, plan, model_->attention));
  FOLIO_RETURN_IF_ERROR(CheckPromptReport(*spec, plan));
  checked.total_tokens =
      NumKeptTokens(plan.truncation, checked.prompt_tokens, max_new_tokens) + max_new_tokens;
  checked.shared_tokens = plan.truncation.enabled() ? 0 : document_tokens;
  bool has_cache = checked.shared_tokens > 0 && HasCache(*checked.document, spec->attention);
  if (spec->first_answer != 0 && SharesPrompt(*spec)) {
    checked.shared_tokens = checked.total_tokens - max_new_tokens - 1;
    has_cache = true;
  }
  checked.needed_bytes = BytesNeeded(spec->attention, checked.total_tokens, checked.shared_tokens);
  checked.prefill_tokens =
      checked.total_tokens - max_new_tokens - (has_cache ? checked.shared_tokens : 0);
  return checked;
}

absl::Status EngineImpl::JoinQueue(const GenerateSpec& spec, const Checked& checked,
                                   TenantAccounts::Ticket* ticket) {
  TenantAccounts& accounts = loop_.accounts();
  const TenantAccounts::Bounds bounds = BoundsOf(options_, spec.tenant);
  const QueueLoad load{
      .requests = 1, .prefill_tokens = checked.prefill_tokens, .kv_bytes = checked.needed_bytes};
  LimitOf of = LimitOf::kAll;
  const char* full = accounts.Join(accounts.Open(spec.tenant), load, bounds, ticket, &of);
  return full == nullptr ? absl::OkStatus() : QueueFull(full, of, load, bounds);
}

absl::Status EngineImpl::CheckPlaces() const {
  if (NumAdmissible(thread_.Stats(), options_) > 0) return absl::OkStatus();
  return LimitReached(
      kQueuedRequests, LimitOf::kAll,
      absl::StrCat("the queue of ", options_.max_queued_requests, " requests is full"));
}

absl::Status EngineImpl::CheckQueue(const TenantPtr& tenant) const {
  FOLIO_RETURN_IF_ERROR(CheckPlaces());
  const TenantAccounts::Bounds bounds = BoundsOf(options_, tenant);
  const QueueLoad load{.requests = 1};
  LimitOf of = LimitOf::kAll;
  const char* full = loop_.accounts().WhatIsFull(tenant, load, bounds, &of);
  return full == nullptr ? absl::OkStatus() : QueueFull(full, of, load, bounds);
}

absl::StatusOr<EngineImpl::Checked> EngineImpl::CheckAdmission(GenerateSpec* spec) const {
  FOLIO_ASSIGN_OR_RETURN(Checked checked, Check(spec));
  FOLIO_RETURN_IF_ERROR(
      CheckCapacity(spec->attention, checked.prompt_tokens + spec->stop.max_new_tokens,
                    checked.needed_bytes, model_->store->capacity_bytes(), model_->attention));
  FOLIO_RETURN_IF_ERROR(CheckTenantCapacity(spec->tenant, checked.needed_bytes));
  FOLIO_RETURN_IF_ERROR(CheckPlaces());
  return checked;
}

absl::StatusOr<RequestId> EngineImpl::Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) {
  TenantAccounts::Ticket ticket;
  if (spec.deadline.has_value()) {
    // Looks far ahead: not while others wait for the lock, and for none that the queue has no room
    // for.
    FOLIO_ASSIGN_OR_RETURN(const Checked checked, CheckAdmission(&spec));
    FOLIO_RETURN_IF_ERROR(JoinQueue(spec, checked, &ticket));
    FOLIO_RETURN_IF_ERROR(CheckDeadline(spec, checked));
  }
  MutexLock lock(&order_mu_);
  FOLIO_ASSIGN_OR_RETURN(const Checked checked, CheckAdmission(&spec));
  if (ticket.account() == nullptr) FOLIO_RETURN_IF_ERROR(JoinQueue(spec, checked, &ticket));
  if (spec.document.has_value() && directory_.Touch(*spec.document)) {
    keeper()->UpdateAttributes(*spec.document, AttributesOf(*spec.document));
  }
  const LoadItem item = ItemOf(spec, checked, thread_.answer_lengths());
  const RequestId id = next_id_.fetch_add(1);
  auto generation = std::make_unique<Generation>(std::move(spec), sink, *model_->tokenizer,
                                                 info().eos_tokens, std::move(ticket));
  auto submit = [id, generation = std::move(generation)](EngineLoop& loop) mutable {
    loop.Submit(id, std::move(generation));
  };
  thread_.Post({std::move(submit), FailRequest(id, std::move(sink))}, item);
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

absl::StatusOr<RequestId> EngineImpl::OpenScore(const AttentionSpec& attention, const Payer& payer,
                                                std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(AttentionSpec resolved, ResolveUnknownLength(attention));
  const RequestId id = next_id_.fetch_add(1);
  const auto open = [id, resolved, sink, payer,
                     account = loop_.accounts().Open(payer.tenant)](EngineLoop& loop) {
    loop.scorings().Open(id, resolved, sink, payer, account);
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

std::vector<TenantUse> EngineImpl::TenantUses() const {
  std::map<std::string, TenantUse> uses;
  for (const auto& [tenant, kv_bytes] : loop_.accounts().KvBytes())
    uses[tenant].kv_bytes = kv_bytes;
  for (const auto& [tenant, count] : directory_.CountByTenant()) uses[tenant].documents = count;
  std::vector<TenantUse> list;
  for (auto& [tenant, use] : uses) {
    use.tenant = tenant;
    list.push_back(std::move(use));
  }
  return list;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, LoadModel(options));
  std::unique_ptr<Engine> engine;
  FOLIO_RETURN_IF_ERROR(
      CatchErrors([&] { engine = std::make_unique<EngineImpl>(options, std::move(model)); }));
  return engine;
}

}  // namespace folio
