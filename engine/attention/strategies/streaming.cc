#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// StreamingLLM. The cache holds the first num_sinks and the last recent_tokens tokens; it is
// trimmed after a step, so a query sees one token more, itself. Positions are indices into what it
// sees: recent tokens are contiguous up to the query, hence at their true distance, and a sink lies
// min(i, num_sinks + recent_tokens) - j away.
class StreamingStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "streaming"; }
  std::string source() const override { return "Xiao et al. 2024, StreamingLLM"; }

  std::vector<Param> Params(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t reach = limits.reach();
    const int64_t sinks = spec.IntOr("num_sinks", std::min<int64_t>(4, reach / 2));
    return {IntegerParam("num_sinks", std::min<int64_t>(4, reach / 2), 1, reach - 1),
            IntegerParam("recent_tokens", std::max<int64_t>(0, reach - sinks - 1), 0, reach - 1)};
  }

  absl::Status Validate(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t seen = spec.Int("num_sinks") + spec.Int("recent_tokens") + 1;
    if (seen <= limits.reach()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("streaming.num_sinks + streaming.recent_tokens + 1 is ", seen,
                     ", must be at most ", limits.reach(), " for this model"));
  }

  LegalRow legal() const override {
    return {.dynamic = "the cache never grows, so the length the base should follow is ambiguous",
            .coca_slack = "re-indexed positions change the logits of slack CoCA"};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    const int64_t sinks = spec.Int("num_sinks");
    const int64_t window = spec.Int("recent_tokens") + 1;
    AttentionPlan plan;
    plan.retention = {window, static_cast<int>(sinks)};
    plan.stages.push_back({.band_end = window});
    plan.stages.push_back({.keys = AttentionStage::Keys::kSinks,
                           .distance = AttentionStage::Distance::kClamped,
                           .band_begin = window,
                           .distance_limit = sinks + window - 1});
    return plan;
  }
};

}  // namespace

const AttentionStrategy& Streaming() {
  static const StreamingStrategy strategy;
  return strategy;
}

}  // namespace folio
