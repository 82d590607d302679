// Position schemes against Hugging Face's tables and the values worked out by hand, the scaling
// laws, and the table of legal combinations.
#include <cmath>
#include <fstream>

#include "engine/attention/attention_registry.h"
#include "engine/attention/rope.h"
#include "engine/attention/rope_scaling.h"
#include "engine/attention/scaling_laws.h"
#include "engine/attention/strategy_registry.h"
#include "engine/attention/visible_keys.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using nlohmann::json;
using test::TestData;
using testing::HasSubstr;

RopeModel Llama2() {
  return {.head_dim = 128,
          .rotary_dim = 128,
          .base = 10000,
          .original_length = 4096,
          .trained_length = 4096,
          .scheme = {"plain", {}},
          .short_factors = {},
          .long_factors = {}};
}

double BaseOf(const Rotary& rotary) {  // from the second frequency
  return std::pow(static_cast<double>(rotary.theta[1]), -64.0);
}

TEST(RopeTables, EqualHuggingFace) {
  for (const json& test : json::parse(std::ifstream(TestData("golden/rope/tables.json")))) {
    const std::string name = test["name"];
    const auto config = ParseModelConfig(test["config"].dump());
    ASSERT_TRUE(config.ok()) << name << ": " << config.status();
    const PositionRequest request{test["length"].get<int64_t>(), false};
    const auto spec = ResolvePositionSpec({}, config->rope, request);
    ASSERT_TRUE(spec.ok() || name.starts_with("dynamic")) << name << ": " << spec.status();
    const PositionPlan plan = FindPositionScheme(spec->name)->plan(*spec, config->rope);
    const auto theta = test["theta"].get<std::vector<double>>();
    ASSERT_EQ(plan.rotary->theta.size(), theta.size()) << name;
    for (size_t m = 0; m < theta.size(); ++m) {
      EXPECT_NEAR(plan.rotary->theta[m] / theta[m], 1.0, 1e-6) << name << " " << m;
    }
    const double factor = test["attention_factor"];
    EXPECT_NEAR(plan.rotary->logit_factor, factor * factor, 1e-6) << name;
  }
}

TEST(RopeTables, NtkMovesTheBaseAsPublished) {
  EXPECT_NEAR(BaseOf(NtkRotary(Llama2(), 2)), 20221.26, 0.5);
  EXPECT_NEAR(BaseOf(NtkRotary(Llama2(), 4)), 40889.94, 1);
  EXPECT_NEAR(BaseOf(NtkRotary(Llama2(), 8)), 82684.62, 2);
  // The slowest pair is exactly theta / s.
  EXPECT_NEAR(NtkRotary(Llama2(), 8).theta[63] * 8 / LinearRotary(Llama2(), 1).theta[63], 1, 1e-6);
}

TEST(RopeTables, DynamicNtkFollowsTheLength) {
  const auto base = [](double factor, int64_t n) {
    return BaseOf(DynamicRotary({10000, factor, 4096, 128}, 128, n));
  };
  EXPECT_NEAR(base(1, 8192), 20221.26, 0.5);
  EXPECT_NEAR(base(2, 8192), 30527.74, 1);
  EXPECT_NEAR(base(4, 8192), 51293.79, 1);
  EXPECT_NEAR(base(1, 4097), 10002.48, 0.3);
  EXPECT_NEAR(base(1, 16384), 40889.94, 1);
  EXPECT_EQ(DynamicRotary({10000, 2, 4096, 128}, 128, 4000), LinearRotary(Llama2(), 1));
}

TEST(RopeTables, YarnRampsBetweenPairs20And46OfLlama2) {
  YarnParams params{.factor = 4, .original_length = 4096};
  const Rotary plain = LinearRotary(Llama2(), 1);
  const Rotary yarn = YarnRotary(Llama2(), params);
  EXPECT_NEAR(yarn.theta[20] / plain.theta[20], 1.0, 1e-6);
  EXPECT_NEAR(yarn.theta[33] / plain.theta[33], 0.625, 1e-6);
  EXPECT_NEAR(yarn.theta[46] / plain.theta[46], 0.25, 1e-6);
  EXPECT_NEAR(YarnAttentionFactor(4), 1.138629, 1e-6);
  EXPECT_NEAR(YarnAttentionFactor(32), 1.346574, 1e-6);
  EXPECT_EQ(YarnAttentionFactor(1), 1);
}

TEST(RopeTables, Llama31ChangesPairs29AndOn) {
  RopeModel model = Llama2();
  model.base = 500000;
  const Rotary plain = LinearRotary(model, 1);
  const Rotary scaled = Llama3Rotary(model, {});
  EXPECT_EQ(scaled.theta[28], plain.theta[28]);
  EXPECT_NEAR(scaled.theta[29] / plain.theta[29], 0.8282, 1e-4);
  EXPECT_NEAR(scaled.theta[35] / plain.theta[35], 0.125, 1e-7);
}

// docs/methods.md, section 1.2: b = 10000, d = 4.
TEST(Rotation, TurnsPairsByPositionTimesTheta) {
  const std::vector<float> theta = RopeTheta(4, 4, 10000);
  EXPECT_FLOAT_EQ(theta[0], 1.0f);
  EXPECT_FLOAT_EQ(theta[1], 0.01f);
  float cos[2];
  float sin[2];
  FillRotation(theta, 1, cos, sin);
  EXPECT_NEAR(cos[0], 0.540302, 1e-6);
  EXPECT_NEAR(sin[0], 0.841471, 1e-6);
}

TEST(Rotation, LeavesTheRestOfAPartialRotaryAlone) {
  const std::vector<float> theta = RopeTheta(8, 4, 10000);
  EXPECT_EQ(theta.size(), 4u);
  EXPECT_EQ(theta[2], 0.0f);
  EXPECT_EQ(theta[3], 0.0f);
}

// The exponent of the relative angle between neighbours stays right at positions near 2e8.
TEST(Rotation, IsExactAtPosition200Million) {
  const std::vector<float> theta = RopeTheta(128, 128, 10000);
  std::vector<float> a(128);
  std::vector<float> b(128);
  FillRotation(theta, 200'000'000, a.data(), a.data() + 64);
  FillRotation(theta, 199'999'999, b.data(), b.data() + 64);
  for (int m = 0; m < 64; ++m) {
    EXPECT_NEAR(a[m] * b[m] + a[64 + m] * b[64 + m], std::cos(static_cast<double>(theta[m])), 1e-6);
  }
}

TEST(ScalingLaws, GiveThePublishedNumbersOfLlama2) {
  EXPECT_EQ(CriticalDimension(128, 1e4, 4096), 92);
  EXPECT_EQ(CriticalDimension(128, 5e5, 4096), 64);
  EXPECT_EQ(CriticalDimension(128, 5e5, 8192), 70);
  EXPECT_EQ(CriticalDimension(128, 1e6, 2048), 54);
  const auto reach = [](double base) { return MaxExtrapolationLength(128, 1e4, 4096, base, 4096); };
  EXPECT_NEAR(reach(1e4), 4711.7, 0.1);
  EXPECT_NEAR(reach(4e4), 12761.8, 0.5);
  EXPECT_NEAR(reach(1e5), 24656, 1);
  EXPECT_NEAR(reach(5e5), 78400, 5);
  EXPECT_NEAR(reach(1e6), 129027, 5);
  EXPECT_NEAR(reach(2e6), 212347, 10);
  EXPECT_EQ(reach(5000), 4096);
  const auto smooth = [](double length) { return RequiredBase(1e4, 4096, length); };
  EXPECT_NEAR(smooth(8192), 26784, 10);
  EXPECT_NEAR(smooth(16384), 71738, 20);
  EXPECT_NEAR(smooth(131072), 1378414, 500);
  const auto ceiling = [](double t) { return RequiredBaseOfCriticalDimension(128, 1e4, 4096, t); };
  EXPECT_NEAR(ceiling(8192), 21588, 5);
  EXPECT_NEAR(ceiling(32768), 148544, 50);
  EXPECT_NEAR(ceiling(1048576), 18.45e6, 0.01e6);
  // LongLLaDA's factors are the ceiling form, rounded up.
  const auto lambda = [](double base, double length, double t) {
    return std::ceil(RequiredBaseOfCriticalDimension(128, base, length, t) / base);
  };
  EXPECT_EQ(lambda(5e5, 4096, 8192), 4);
  EXPECT_EQ(lambda(5e5, 4096, 16384), 14);
  EXPECT_EQ(lambda(5e5, 4096, 24576), 31);
  EXPECT_EQ(lambda(5e5, 4096, 32768), 55);
  EXPECT_EQ(lambda(5e5, 8192, 16384), 4);
  EXPECT_EQ(lambda(5e5, 8192, 32768), 13);
}

AttentionPlan PlanOfEntropy(double base_length, int first_layer) {
  AttentionPlan plan;
  plan.stages.emplace_back();
  plan.entropy = {base_length, first_layer};
  return plan;
}

TEST(Entropy, IsTheLogarithmOfThePositionToTheBaseOfTheWindow) {
  const AttentionPlan plan = PlanOfEntropy(4096, 2);
  EXPECT_EQ(EntropyFactor(plan, 4095, 2), 1.0f);
  EXPECT_EQ(EntropyFactor(plan, 100, 2), 1.0f);
  EXPECT_NEAR(EntropyFactor(plan, 8191, 2), 13.0 / 12, 1e-6);
  EXPECT_NEAR(EntropyFactor(plan, 16383, 2), 7.0 / 6, 1e-6);
  EXPECT_NEAR(EntropyFactor(plan, 131071, 2), 17.0 / 12, 1e-6);
  EXPECT_NEAR(EntropyFactor(plan, (1 << 24) - 1, 2), 2.0, 1e-6);
  EXPECT_EQ(EntropyFactor(plan, 131071, 1), 1.0f);
}

AttentionModel Model(PositionKind kind = PositionKind::kRope) {
  return {.limits = {4096, 64, 0}, .kind = kind, .rope = Llama2()};
}

absl::StatusOr<AttentionSpec> Resolve(const StrategySpec& strategy, const PositionSpec& position,
                                      PositionKind kind = PositionKind::kRope,
                                      PositionRequest request = {20000, false}) {
  return ResolveAttention({strategy, position}, {"long_heads", {}}, Model(kind), request);
}

std::string Refusal(const StrategySpec& strategy, const PositionSpec& position,
                    PositionKind kind = PositionKind::kRope,
                    PositionRequest request = {20000, false}) {
  return std::string(Resolve(strategy, position, kind, request).status().message());
}

// docs/methods.md, section 12, by strategy: which of static, dynamic, entropy schemes are legal.
TEST(Legality, IsTheTable) {
  using Column = PositionColumn;
  const auto legal = [](const std::string& strategy, Column column, PositionKind kind) {
    return !WhyIllegal(*FindStrategy(strategy), column, kind).has_value();
  };
  const auto rope = PositionKind::kRope;
  for (const char* name : {"full", "truncation", "long_heads"}) {
    for (Column column : {Column::kPlain, Column::kStatic, Column::kDynamic, Column::kEntropy}) {
      EXPECT_TRUE(legal(name, column, rope)) << name;
    }
  }
  for (const char* name : {"sliding_window", "streaming", "lm_infinite"}) {
    EXPECT_TRUE(legal(name, Column::kStatic, rope)) << name;
    EXPECT_TRUE(legal(name, Column::kEntropy, rope)) << name;
    EXPECT_FALSE(legal(name, Column::kDynamic, rope)) << name;
  }
  EXPECT_FALSE(legal("rerope", Column::kStatic, rope));
  EXPECT_FALSE(legal("rerope", Column::kDynamic, rope));
  EXPECT_TRUE(legal("rerope", Column::kEntropy, rope));
  for (const std::string name : {"full", "truncation", "sliding_window", "streaming", "lm_infinite",
                                 "long_heads", "rerope"}) {
    EXPECT_TRUE(legal(name, Column::kPlain, rope)) << name;
    EXPECT_EQ(legal(name, Column::kPlain, PositionKind::kAlibi), name != "rerope") << name;
    EXPECT_FALSE(legal(name, Column::kStatic, PositionKind::kAlibi)) << name;
    EXPECT_EQ(legal(name, Column::kPlain, PositionKind::kCocaSlack),
              name == "full" || name == "truncation")
        << name;
    EXPECT_EQ(legal(name, Column::kPlain, PositionKind::kByLayer),
              name == "full" || name == "truncation")
        << name;
    EXPECT_FALSE(legal(name, Column::kStatic, PositionKind::kByLayer)) << name;
    EXPECT_EQ(legal(name, Column::kPlain, PositionKind::kCocaStrict),
              name != "long_heads" && name != "rerope")
        << name;
  }
}

TEST(Legality, SaysWhy) {
  EXPECT_THAT(Refusal({"lm_infinite", {}}, {"dynamic_ntk", {}}),
              HasSubstr("lm_infinite cannot be combined with the positions dynamic_ntk: distances "
                        "never exceed the window"));
  EXPECT_THAT(Refusal({"full", {}}, {"linear", {}}, PositionKind::kAlibi),
              HasSubstr("no rotary positions to scale"));
  EXPECT_THAT(
      Refusal({"long_heads", {}}, {}, PositionKind::kByLayer),
      HasSubstr("layers of this model see windows of their own, which full and truncation"));
  EXPECT_THAT(Refusal({"full", {}}, {"yarn", {}}, PositionKind::kByLayer),
              HasSubstr("layers of this model are rotated each in their way"));
  EXPECT_THAT(Refusal({"long_heads", {}}, {"dynamic_ntk", {{"exact", 1}}}), HasSubstr("frozen"));
  EXPECT_TRUE(Resolve({"truncation", {}}, {"dynamic_ntk", {{"exact", 1}}}).ok());
  const auto status = Resolve({"lm_infinite", {}}, {"dynamic_ntk", {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*status.GetPayload(kFieldPayload), "position");
  EXPECT_EQ(*Resolve({"magic", {}}, {}).status().GetPayload(kFieldPayload), "strategy");
}

TEST(Resolve, UnsetMeansTheDefaultStrategyAndTheCheckpointsPositions) {
  const auto spec = Resolve({}, {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->strategy.name, "long_heads");
  EXPECT_EQ(spec->position.name, "plain");
}

TEST(Resolve, ParametersOfSchemesAreChecked) {
  EXPECT_THAT(Refusal({"full", {}}, {"yarn", {{"factor", 0.5}}}),
              HasSubstr("yarn.factor is 0.5, must be in [1, 4096]"));
  EXPECT_THAT(Refusal({"full", {}}, {"yarn", {{"factor", NAN}}}), HasSubstr("yarn.factor is nan"));
  EXPECT_THAT(Refusal({"full", {}}, {"yarn", {{"x", 1}}}), HasSubstr("yarn has no parameter 'x'"));
  EXPECT_THAT(Refusal({"full", {}}, {"magic", {}}),
              HasSubstr("must be one of: plain, linear, ntk"));
  EXPECT_THAT(Refusal({"full", {}}, {"longrope", {}}), HasSubstr("this one has none"));
}

TEST(Resolve, ScaledPositionsRaiseTheLimitsOfStrategies) {
  const auto window = Resolve({"sliding_window", {}}, {"linear", {{"factor", 4}}});
  EXPECT_EQ(window->strategy.Int("window"), 16384);
  // LongHeads: of the prompt only.
  const auto heads =
      Resolve({"long_heads", {{"begin_selective_length", 16384}}}, {"linear", {{"factor", 4}}});
  EXPECT_TRUE(heads.ok()) << heads.status();
  EXPECT_THAT(Refusal({"long_heads", {{"attention_length", 8192}}}, {"linear", {{"factor", 4}}}),
              HasSubstr("must be in [256, 4096]"));
  EXPECT_THAT(Refusal({"lm_infinite", {{"window", 100}}}, {"linear", {{"factor", 4}}}),
              HasSubstr("lm_infinite.window is 100, must be 16384"));
}

TEST(Resolve, DynamicNtkNeedsALengthForDocuments) {
  const PositionRequest upload{0, false};
  const PositionRequest question{9000, true};
  const auto kind = PositionKind::kRope;
  EXPECT_THAT(Refusal({"full", {}}, {"dynamic_ntk", {}}, kind, upload), HasSubstr("length"));
  EXPECT_THAT(Refusal({"full", {}}, {"dynamic_ntk", {}}, kind, question), HasSubstr("length"));
  EXPECT_THAT(Refusal({"full", {}}, {"dynamic_ntk", {{"exact", 1}}}, kind, question),
              HasSubstr("inline"));
  EXPECT_THAT(Refusal({"full", {}}, {"dynamic_ntk", {{"length", 8000}}}, kind, question),
              HasSubstr("9000"));
  const auto a = Resolve({"full", {}}, {"dynamic_ntk", {{"length", 10000}}}, kind, upload);
  const auto b = Resolve({"full", {}}, {"dynamic_ntk", {{"length", 10000}}}, kind, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(*a, *b);  // so that the question finds the document's cache
}

}  // namespace
}  // namespace folio
