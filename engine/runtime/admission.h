#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "engine/attention/attention_registry.h"
#include "engine/runtime/document_info.h"
#include "engine/runtime/engine.h"
#include "engine/sched/tenant_account.h"
#include "engine/types/attention_plan.h"
#include "engine/types/request.h"

// What a call must satisfy before anything of it is queued. Pure functions of plain data; the
// engine calls them on the caller's thread.
namespace folio {

// INVALID_ARGUMENT with the index of the first token that is not in the vocabulary.
absl::Status CheckTokens(std::span<const int32_t> tokens, int vocab_size);

// INVALID_ARGUMENT: an empty prompt or bad word, bad token ids, no token to generate, or fewer than
// have to be.
absl::Status CheckRequest(const GenerateSpec& spec, int vocab_size);

// INVALID_ARGUMENT if `what` has more tokens than the limit.
absl::Status CheckLength(const std::string& what, int64_t tokens, int64_t max_tokens);

// Evidence needs a plan whose heads choose. UNIMPLEMENTED, naming the strategies whose heads do.
absl::Status CheckEvidence(const GenerateSpec& spec, const AttentionPlan& plan,
                           const AttentionModel& model);

// UNIMPLEMENTED for a report of the prompt, log-probabilities or echo, where the strategy cuts it.
absl::Status CheckPromptReport(const GenerateSpec& spec, const AttentionPlan& plan);

// INVALID_ARGUMENT if the strategy cuts prompts, which needs a text of known length: an upload or a
// scored stream has none.
absl::Status CheckUnknownLength(const AttentionSpec& spec, const AttentionPlan& plan);

// FAILED_PRECONDITION if the cache is too small even when it is empty.
absl::Status CheckCapacity(const AttentionSpec& spec, int64_t total_tokens, int64_t needed_bytes,
                           int64_t capacity_bytes, const AttentionModel& model);

// How many requests may come beside those that are there, or on their way to the engine thread: as
// many as can wait, and, while nobody waits, as many as can run at once. May be negative.
int NumAdmissible(const EngineStats& stats, const EngineOptions& options);

// How many requests of one tenant may wait and run, without limits of its own: all places but those
// in the queue that are kept for others.
int MostOfClient(const EngineOptions& options);

// Of the queue for a request of this tenant; no number of requests in all, which is NumAdmissible.
TenantAccounts::Bounds BoundsOf(const EngineOptions& options, const TenantPtr& tenant);

// RESOURCE_EXHAUSTED with kLimitPayload: what TenantAccounts::Join has found full.
absl::Status QueueFull(const char* limit, LimitOf of, const QueueLoad& load,
                       const TenantAccounts::Bounds& bounds);

// FAILED_PRECONDITION if a request needs more KV cache than its tenant may ever have.
absl::Status CheckTenantCapacity(const TenantPtr& tenant, int64_t needed_bytes);

// FAILED_PRECONDITION if the document has failed; has failed or is finished; has failed or is not
// finished.
absl::Status CheckAlive(const DocumentInfo& document);
absl::Status CheckUploading(const DocumentInfo& document);
absl::Status CheckFinished(const DocumentInfo& document);

// How to get by with less cache, for messages: the strategies whose memory is bounded, and the
// option.
std::string MemoryAdvice(const AttentionModel& model);

}  // namespace folio
