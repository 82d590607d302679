#include <algorithm>

#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// LM-Infinite without the optional middle tokens. Source: Han et al. 2024, section 4, in the form
// that evicts (see docs of the authors' first release): keys at distance < window are seen at their
// true distance, the first num_sinks tokens beyond it at exactly distance_limit, nothing else.
class LmInfiniteStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "lm_infinite"; }

  std::vector<StrategyParam> Params(const StrategySpec& spec,
                                    const StrategyLimits& limits) const override {
    const int64_t length = limits.trained_length;
    const int64_t window = spec.Param("window").value_or(length);
    return {{"num_sinks", 10, 0, 1024},
            {"window", length, 1, length},
            {"distance_limit", std::clamp<int64_t>(window, 1, length), 1, length}};
  }

  absl::Status Validate(const StrategySpec&, const StrategyLimits&) const override {
    return absl::OkStatus();
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    const int64_t window = *spec.Param("window");
    AttentionPlan plan;
    plan.retention.window_tokens = window;
    plan.retention.num_sinks = static_cast<int>(*spec.Param("num_sinks"));
    plan.stages.push_back({.keys = AttentionStage::Keys::kContext, .band_end = window});
    if (plan.retention.num_sinks > 0) {
      plan.stages.push_back({.keys = AttentionStage::Keys::kSinks,
                             .distance = AttentionStage::Distance::kPinned,
                             .band_begin = window,
                             .pinned_distance = *spec.Param("distance_limit")});
    }
    return plan;
  }
};

}  // namespace

const AttentionStrategy& LmInfinite() {
  static const LmInfiniteStrategy strategy;
  return strategy;
}

}  // namespace folio
