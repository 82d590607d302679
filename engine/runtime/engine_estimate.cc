// The front door: what a request or a document would take.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/memory_receipt.h"
#include "engine/runtime/shortage.h"

namespace folio {

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
  return estimate;
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
                                                      int64_t num_tokens) const {
  Estimate estimate;
  FOLIO_ASSIGN_OR_RETURN(estimate.attention, ResolveUnknownLength(attention));
  FOLIO_RETURN_IF_ERROR(CheckLength("the document", num_tokens, options_.max_context_tokens));
  estimate.prompt_tokens = estimate.total_tokens = num_tokens;
  Add(FootprintOfDocument(estimate.attention, num_tokens), &estimate.memory);
  JudgeFit(BytesNeeded(estimate.attention, num_tokens, 0), &estimate);
  return estimate;
}

}  // namespace folio
