// The front door: what a request or a document would take.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/memory_receipt.h"
#include "engine/runtime/shortage.h"

namespace folio {
namespace {

// Nobody needs to know more of what is further away.
constexpr double kMostSeconds = 24 * 3600;

void SetForecast(const std::optional<Forecast>& forecast, Estimate* estimate) {
  if (!forecast.has_value()) return;
  estimate->queue_seconds = forecast->queue_seconds;
  estimate->first_token_seconds = forecast->first_token_seconds;
}

}  // namespace

void EngineImpl::JudgeFit(int64_t needed_bytes, Estimate* estimate) const {
  const EngineStats stats = thread_.Stats();
  const int64_t capacity = model_->store->capacity_bytes();
  const absl::Status fits = CheckCapacity(estimate->attention, estimate->total_tokens, needed_bytes,
                                          capacity, model_->attention);
  const int64_t free_bytes = capacity - stats.kv_reserved_bytes + stats.kv_evictable_bytes;
  if (!fits.ok()) {
    estimate->fit = Estimate::Fit::kNever;
    estimate->reason = std::string(fits.message());
  } else if (needed_bytes > capacity - stats.kv_staying_bytes) {
    estimate->fit = Estimate::Fit::kNever;
    const absl::Status full = NoRoomInCache({.who = "it",
                                             .needed_bytes = needed_bytes,
                                             .kept_bytes = stats.kv_staying_bytes,
                                             .capacity_bytes = capacity},
                                            model_->attention);
    estimate->reason = std::string(full.message());
  } else if (needed_bytes > free_bytes) {
    estimate->fit = Estimate::Fit::kWhenIdle;
    estimate->reason = absl::StrCat("needs ", needed_bytes, " bytes of KV cache, ", free_bytes,
                                    " of ", capacity, " are free while others run or are saved");
  }
}

absl::StatusOr<Estimate> EngineImpl::EstimateRequest(GenerateSpec spec) const {
  FOLIO_ASSIGN_OR_RETURN(const Checked checked, Check(&spec));
  Estimate estimate;
  estimate.attention = spec.attention;
  estimate.prompt_tokens = checked.prompt_tokens;
  estimate.total_tokens = checked.total_tokens;
  // The last token of an answer is never computed.
  const AttentionPlan plan = PlanFor(spec.attention, model_->attention, checked.prompt_tokens);
  Add(model_->store->LargestFootprint(
          plan, {.shared_tokens = checked.shared_tokens,
                 .prompt_tokens = checked.total_tokens - spec.stop.max_new_tokens,
                 .total_tokens = checked.total_tokens - 1,
                 .step_tokens = model_->scheduler.step_tokens}),
      &estimate.memory);
  int64_t needed = checked.needed_bytes;
  if (checked.shared_tokens > 0 && !HasCache(*checked.document, spec.attention)) {
    Add(FootprintOfDocument(spec.attention, checked.shared_tokens), &estimate.document);
    needed += BytesNeeded(spec.attention, checked.shared_tokens, 0);
  }
  JudgeFit(needed, &estimate);
  if (estimate.fit != Estimate::Fit::kNever) {
    const WorkLoad load = thread_.GetLoad();
    LoadItem item = ItemOf(spec, checked, load.answers);
    ComesNow(load, &item);
    SetForecast(Predict(load, item, kMostSeconds), &estimate);
  }
  return estimate;
}

LoadItem EngineImpl::ItemOf(const GenerateSpec& spec, const Checked& checked,
                            const AnswerLengths& lengths) const {
  const int64_t prompt_tokens = checked.total_tokens - spec.stop.max_new_tokens;
  const AttentionPlan plan = PlanFor(spec.attention, model_->attention, prompt_tokens);
  LoadItem item = NewItem(model_->scheduler.costs, plan,
                          {prompt_tokens - checked.prefill_tokens, prompt_tokens},
                          {spec.tenant, spec.priority});
  item.needed_bytes = checked.needed_bytes;
  item.answer_tokens = lengths.Expected(spec.stop);
  return item;
}

absl::Status EngineImpl::CheckDeadline(const GenerateSpec& spec, const Checked& checked) const {
  if (!spec.deadline.has_value()) return absl::OkStatus();
  const std::chrono::duration<double> left = *spec.deadline - std::chrono::steady_clock::now();
  if (left.count() <= 0) return absl::OkStatus();  // it ends at once
  const WorkLoad load = thread_.GetLoad();
  LoadItem item = ItemOf(spec, checked, load.answers);
  ComesNow(load, &item);
  const std::optional<double> least = IsTooLate(load, item, left.count());
  if (!least.has_value()) return absl::OkStatus();
  absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("the deadline is in ", left.count(), " s, the answer is expected to take ",
                   *least, " s or more, with ", std::llround(item.answer_tokens),
                   " tokens: ask with a later deadline, for fewer tokens (max_new_tokens), or when "
                   "less is to be done"));
  status.SetPayload(kExpectedSecondsPayload, absl::Cord(absl::StrCat(*least)));
  return status;
}

KvFootprint EngineImpl::FootprintOfDocument(const AttentionSpec& attention,
                                            int64_t num_tokens) const {
  return model_->store->LargestFootprint(PlanFor(attention, model_->attention),
                                         {.prompt_tokens = num_tokens,
                                          .total_tokens = num_tokens,
                                          .step_tokens = model_->scheduler.step_tokens});
}

bool EngineImpl::HasCache(const DocumentInfo& document, const AttentionSpec& attention) {
  const bool in_pools = document.device_kv_bytes + document.host_kv_bytes + document.disk_kv_bytes +
                            document.summary_bytes >
                        0;
  return document.attention == attention && in_pools;
}

absl::StatusOr<Estimate> EngineImpl::EstimateDocument(const AttentionSpec& attention,
                                                      int64_t num_tokens,
                                                      const Payer& payer) const {
  Estimate estimate;
  FOLIO_ASSIGN_OR_RETURN(estimate.attention, ResolveUnknownLength(attention));
  FOLIO_RETURN_IF_ERROR(CheckLength("the document", num_tokens, options_.max_context_tokens));
  estimate.prompt_tokens = estimate.total_tokens = num_tokens;
  Add(FootprintOfDocument(estimate.attention, num_tokens), &estimate.memory);
  const int64_t needed = BytesNeeded(estimate.attention, num_tokens, 0);
  JudgeFit(needed, &estimate);
  if (estimate.fit == Estimate::Fit::kNever) return estimate;
  const WorkLoad load = thread_.GetLoad();
  LoadItem item = NewItem(model_->scheduler.costs, PlanFor(estimate.attention, model_->attention),
                          {0, num_tokens}, payer);
  ComesNow(load, &item);
  item.needed_bytes = needed;
  item.needs_place = false;
  SetForecast(Predict(load, item, kMostSeconds), &estimate);
  return estimate;
}

}  // namespace folio
