#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

constexpr NamedValue<PromptTruncation::Side> kSides[] = {
    {"left", PromptTruncation::Side::kLeft},
    {"right", PromptTruncation::Side::kRight},
    {"center", PromptTruncation::Side::kCenter},
};

// Full attention over at most keep_tokens tokens of the prompt: the last (side LEFT is cut, the
// baseline of the LM-Infinite paper), the first (RIGHT, the default of its code) or half of each
// (CENTER; of an odd number the back has one more). Positions count what is kept.
class TruncationStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "truncation"; }
  std::string source() const override { return "Han et al. 2024, LM-Infinite, section 5"; }

  std::vector<Param> Params(const StrategySpec&, const StrategyLimits& limits) const override {
    return {IntegerParam("keep_tokens", limits.reach(), 2, limits.reach()),
            ChoiceParam("side", kSides)};
  }

  LegalRow legal() const override { return {.by_layer = nullptr}; }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) const override {
    AttentionPlan plan;
    plan.stages.push_back(AttentionStage{});
    plan.truncation = {spec.Int("keep_tokens"), limits.reach(),
                       ValueOf(kSides, spec.Choice("side"))};
    return plan;
  }
};

}  // namespace

const AttentionStrategy& Truncation() {
  static const TruncationStrategy strategy;
  return strategy;
}

}  // namespace folio
