#include "engine/runtime/admission.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/attention/strategy_registry.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/shortage.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

// The strategies that this model can use whose plan with default parameters has a property.
std::string StrategiesThat(const AttentionModel& model, bool (*has)(const AttentionPlan&)) {
  std::vector<std::string> names;
  for (const AttentionStrategy* strategy : AllStrategies()) {
    const auto spec = ResolveAttention({{strategy->name(), {}}, {}}, {}, model, {});
    if (spec.ok() && has(PlanFor(*spec, model))) names.push_back(strategy->name());
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// Of the queue, which no tenant alone can take.
constexpr int kPartForOthers = 8;

// The smaller of two bounds, of which 0 is none.
int64_t Smaller(int64_t a, int64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

int64_t WithoutPartForOthers(int64_t bound) { return bound - bound / kPartForOthers; }

bool Chooses(const AttentionPlan& plan) { return plan.selection.enabled(); }

bool IsBounded(const AttentionPlan& plan) { return plan.retention.window_tokens != kUnbounded; }

}  // namespace

absl::Status CheckTokens(std::span<const int32_t> tokens, int vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", tokens[i], " at index ", i,
                                                     " is not in the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const GenerateSpec& spec, int vocab_size) {
  if (spec.tokens.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (spec.stop.max_new_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", spec.stop.max_new_tokens, ", must be at least 1"));
  }
  if (spec.stop.min_new_tokens < 0 || spec.stop.min_new_tokens > spec.stop.max_new_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_new_tokens is ", spec.stop.min_new_tokens,
                                                   ", must be in [0, ", spec.stop.max_new_tokens,
                                                   "], up to max_new_tokens"));
  }
  for (const TokenBias& bias : spec.sampling.logit_bias) {
    FOLIO_RETURN_IF_ERROR(CheckTokens(std::span(&bias.token, 1), vocab_size));
  }
  for (const std::vector<int32_t>& word : spec.sampling.bad_words) {
    if (word.empty()) return absl::InvalidArgumentError("a bad word has no tokens");
    FOLIO_RETURN_IF_ERROR(CheckTokens(word, vocab_size));
  }
  FOLIO_RETURN_IF_ERROR(CheckTokens(spec.tokens, vocab_size));
  return CheckTokens(spec.stop.stop_token_ids, vocab_size);
}

absl::Status CheckLength(const std::string& what, int64_t tokens, int64_t max_tokens) {
  if (tokens <= max_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", tokens, " tokens, the limit is ", max_tokens));
}

absl::Status CheckEvidence(const GenerateSpec& spec, const AttentionPlan& plan,
                           const AttentionModel& model) {
  const bool wanted = spec.max_evidence_spans > 0 || spec.layer_evidence;
  if (!wanted || Chooses(plan)) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      spec.attention.strategy.name,
      " cannot give evidence: its heads choose no parts of the text. Strategies whose heads do: ",
      StrategiesThat(model, Chooses)));
}

absl::Status CheckPromptReport(const GenerateSpec& spec, const AttentionPlan& plan) {
  const bool wanted = spec.prompt_logprobs || spec.echo;
  if (!wanted || !plan.truncation.enabled()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      spec.attention.strategy.name,
      " cuts the prompt, of which neither log-probabilities nor an echo are given then; "
      "use another strategy"));
}

absl::Status CheckUnknownLength(const AttentionSpec& spec, const AttentionPlan& plan) {
  if (!plan.truncation.enabled()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(spec.strategy.name,
                   " cuts prompts of a known length, which an upload or a scored stream does not "
                   "have; use another strategy, and name this one in a question"));
}

absl::Status CheckCapacity(const AttentionSpec& spec, int64_t total_tokens, int64_t needed_bytes,
                           int64_t capacity_bytes, const AttentionModel& model) {
  if (needed_bytes <= capacity_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(total_tokens, " tokens under ", spec.strategy.name, " need ", needed_bytes,
                   " bytes of KV cache, this server has ", capacity_bytes, ": shorten the text, ",
                   MemoryAdvice(model)));
}

int NumAdmissible(const EngineStats& stats, const EngineOptions& options) {
  // Where some wait, places are taken or memory is short.
  const int places = stats.waiting > 0 ? 0 : options.max_running_requests - stats.running;
  return options.max_queued_requests - stats.queued() + std::max(0, places);
}

int MostOfClient(const EngineOptions& options) {
  const int usual = options.max_queued_requests - options.max_queued_requests / kPartForOthers;
  const int queued = options.max_queued_requests_per_client;
  return options.max_running_requests + (queued == 0 ? usual : queued);
}

TenantAccounts::Bounds BoundsOf(const EngineOptions& options, const TenantPtr& tenant) {
  TenantAccounts::Bounds bounds;
  bounds.of_all.prefill_tokens = options.max_queued_prefill_tokens;
  bounds.of_all.kv_bytes = options.max_queued_kv_bytes;
  if (tenant == nullptr) return bounds;
  const TenantLimits& limits = tenant->limits;
  const int running =
      static_cast<int>(Smaller(limits.max_running_requests, options.max_running_requests));
  bounds.of_tenant.requests =
      Smaller(MostOfClient(options),
              limits.max_queued_requests == 0 ? 0 : int64_t{running} + limits.max_queued_requests);
  bounds.of_tenant.prefill_tokens =
      Smaller(limits.max_queued_prefill_tokens, WithoutPartForOthers(bounds.of_all.prefill_tokens));
  bounds.of_tenant.kv_bytes = WithoutPartForOthers(bounds.of_all.kv_bytes);
  return bounds;
}

absl::Status QueueFull(const char* limit, LimitOf of, const QueueLoad& load,
                       const TenantAccounts::Bounds& bounds) {
  const QueueLoad& bound = of == LimitOf::kTenant ? bounds.of_tenant : bounds.of_all;
  const char* const whose = of == LimitOf::kTenant ? "one tenant" : "all clients";
  if (limit == kQueuedRequests) {
    return LimitReached(limit, of,
                        absl::StrCat(bound.requests, " requests of ", whose,
                                     " wait or run; the other places are kept for others"));
  }
  if (limit == kQueuedPrefillTokens) {
    return LimitReached(
        limit, of,
        absl::StrCat("with ", load.prefill_tokens, " more, over ", bound.prefill_tokens,
                     " tokens of prompts of ", whose, " would wait or be read"));
  }
  return LimitReached(limit, of,
                      absl::StrCat("with ", load.kv_bytes, " more, requests of ", whose,
                                   " would wait for over ", bound.kv_bytes, " bytes of KV cache"));
}

absl::Status CheckTenantCapacity(const TenantPtr& tenant, int64_t needed_bytes) {
  const int64_t most = tenant == nullptr ? 0 : tenant->limits.max_kv_bytes;
  if (most == 0 || needed_bytes <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the request needs ", needed_bytes, " bytes of KV cache, its tenant may have ",
                   most, ": shorten the text or choose a strategy of bounded memory"));
}

absl::Status CheckAlive(const DocumentInfo& document) {
  if (document.state != DocumentState::kFailed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("document ", Quoted(DocumentName(document.handle.id)), " has failed (",
                   document.error.message(), "); delete it to upload it again"));
}

absl::Status CheckUploading(const DocumentInfo& document) {
  FOLIO_RETURN_IF_ERROR(CheckAlive(document));
  if (document.state == DocumentState::kUploading) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the upload of document ", Quoted(DocumentName(document.handle.id)), " is finished"));
}

absl::Status CheckFinished(const DocumentInfo& document) {
  FOLIO_RETURN_IF_ERROR(CheckAlive(document));
  if (document.state != DocumentState::kUploading) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the upload of document ", Quoted(DocumentName(document.handle.id)), " is not finished"));
}

std::string MemoryAdvice(const AttentionModel& model) {
  return absl::StrCat("choose a strategy of bounded memory (", StrategiesThat(model, IsBounded),
                      "), or raise --kv-bytes");
}

}  // namespace folio
