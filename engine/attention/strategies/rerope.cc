#include <algorithm>

#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// ReRoPE: every token is seen, at distance min(i - j, window). The default window is the largest
// distance the model was trained on; the authors' results use a half or a quarter of it.
// scale_logits multiplies logits by max(log_L(i + 1), 1) as their code does.
class RectifiedRopeStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "rerope"; }
  std::string source() const override { return "Su 2023, ReRoPE (bojone/rerope)"; }

  std::vector<Param> Params(const StrategySpec&, const StrategyLimits& limits) const override {
    const int64_t largest = std::max(1, limits.trained_length - 1);
    return {IntegerParam("window", largest, 1, largest), FlagParam("scale_logits")};
  }

  LegalRow legal() const override {
    return {.static_scheme = "distances never exceed the window, so scaled positions are pointless",
            .dynamic = "distances never exceed the window, so a growing base is pointless",
            .alibi = "ALiBi has no rotary positions to rectify; use lm_infinite",
            .coca_strict = "the combination was never published",
            .coca_slack = "the logits of slack CoCA depend on absolute positions"};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t window = spec.Int("window");
    AttentionPlan plan;
    plan.key_form = KeyForm::kRaw;
    plan.stages.push_back({.band_end = window});
    plan.stages.push_back({.distance = AttentionStage::Distance::kPinned,
                           .band_begin = window,
                           .distance_limit = window});
    if (spec.Flag("scale_logits")) {
      plan.entropy = {static_cast<double>(limits.trained_length), 0};
    }
    return plan;
  }
};

}  // namespace

const AttentionStrategy& RectifiedRope() {
  static const RectifiedRopeStrategy strategy;
  return strategy;
}

}  // namespace folio
