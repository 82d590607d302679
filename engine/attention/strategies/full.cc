#include "engine/attention/strategies/strategies.h"

namespace folio {
namespace {

// Every query sees every token up to itself at its true distance.
class FullStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "full"; }
  std::string source() const override { return "Vaswani et al. 2017"; }

  std::vector<Param> Params(const StrategySpec&, const StrategyLimits&) const override {
    return {};
  }

  LegalRow legal() const override { return {.by_layer = nullptr}; }

  AttentionPlan Plan(const StrategySpec&, const StrategyLimits&) const override {
    AttentionPlan plan;
    plan.stages.push_back(AttentionStage{});
    return plan;
  }
};

}  // namespace

const AttentionStrategy& Full() {
  static const FullStrategy strategy;
  return strategy;
}

}  // namespace folio
