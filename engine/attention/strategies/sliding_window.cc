#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// A query sees the last `window` tokens, itself included, at their true distance.
class SlidingWindowStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "sliding_window"; }
  std::string source() const override { return "Beltagy et al. 2020, Longformer"; }

  std::vector<Param> Params(const StrategySpec&, const StrategyLimits& limits) const override {
    return {IntegerParam("window", limits.reach(), 1, limits.reach())};
  }

  LegalRow legal() const override {
    return {.dynamic = "a window never grows, so the length the base should follow is ambiguous",
            .coca_slack = "the logits of slack CoCA depend on absolute positions"};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    AttentionPlan plan;
    plan.retention.window_tokens = spec.Int("window");
    plan.stages.push_back({.band_end = plan.retention.window_tokens});
    return plan;
  }
};

}  // namespace

const AttentionStrategy& SlidingWindow() {
  static const SlidingWindowStrategy strategy;
  return strategy;
}

}  // namespace folio
