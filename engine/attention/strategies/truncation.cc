#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// Full attention over at most keep_tokens tokens of the prompt: the last (side LEFT is cut, the
// baseline of the LM-Infinite paper), the first (RIGHT, the default of its code) or half of each
// (CENTER; of an odd number the back has one more). Positions count what is kept.
class TruncationStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "truncation"; }
  std::string source() const override { return "Han et al. 2024, LM-Infinite, section 5"; }

  std::vector<StrategyParam> Params(const StrategySpec&,
                                    const StrategyLimits& limits) const override {
    return {{"keep_tokens", limits.reach(), 2, limits.reach()}, {"side", 1, 1, 3}};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) const override {
    AttentionPlan plan;
    plan.stages.push_back(AttentionStage{});
    plan.truncation = {*spec.Param("keep_tokens"), limits.reach(),
                       static_cast<PromptTruncation::Side>(*spec.Param("side") - 1)};
    return plan;
  }
};

}  // namespace

const AttentionStrategy& Truncation() {
  static const TruncationStrategy strategy;
  return strategy;
}

}  // namespace folio
