// A strategy that exists for the tests only, to show what a new one takes: this file, the row at
// its end, and a test. The conformance test finds it by itself.
#include "engine/attention/strategy_registry.h"
#include "engine/attention/visible_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

// The last `window` tokens, and the first one as if it stood just in front of them.
class ToyStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "toy"; }
  std::string source() const override { return "tests"; }

  std::vector<Param> Params(const StrategySpec&, const StrategyLimits& limits) const override {
    return {IntegerParam("window", limits.trained_length - 1, 1, limits.trained_length - 1)};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    const int64_t window = spec.Int("window");
    AttentionPlan plan;
    plan.retention = {window, 1};
    plan.stages.push_back({.band_end = window});
    plan.stages.push_back({.keys = AttentionStage::Keys::kSinks,
                           .distance = AttentionStage::Distance::kClamped,
                           .band_begin = window,
                           .distance_limit = window});
    return plan;
  }
};

const ToyStrategy kToy;
const bool kRow = AddStrategy(&kToy);

TEST(Toy, SeesTheFirstTokenInFrontOfTheWindow) {
  ASSERT_TRUE(kRow);
  const StrategyLimits limits{64, 16, 0};
  const auto spec = ResolveStrategySpec({"toy", {{"window", 2}}}, limits);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(ExpandPlan(FindStrategy("toy")->Plan(*spec, limits), 9, {}),
              testing::ElementsAre(VisibleKey{0, 2}, VisibleKey{8, 1}, VisibleKey{9, 0}));
}

}  // namespace
}  // namespace folio
