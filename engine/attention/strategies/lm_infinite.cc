#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/attention/strategies/strategies.h"
#include "engine/types/limits.h"

namespace folio {
namespace {

// LM-Infinite. Source: Han et al. 2024, section 4, in the form that evicts (the authors' first
// release): keys at distance < window are seen at their true distance, the first num_sinks tokens
// beyond it at exactly distance_limit. With top_tokens, the last row of the prompt and every row of
// the answer also see, per query head from layer top_from_layer on, the top_tokens tokens in
// between that score best at distance top_distance, at that distance.
class LmInfiniteStrategy final : public AttentionStrategy {
 public:
  std::string name() const override { return "lm_infinite"; }
  std::string source() const override { return "Han et al. 2024, LM-Infinite"; }

  std::vector<Param> Params(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t reach = limits.reach();
    const int64_t window = std::clamp<int64_t>(spec.IntOr("window", reach), 1, reach);
    return {IntegerParam("num_sinks", 10, 0, kMaxSinks),
            IntegerParam("window", reach, 1, reach),
            IntegerParam("distance_limit", window, 1, kNoCeiling),
            IntegerParam("top_tokens", 0, 0, kMaxTopTokens),
            IntegerParam("top_distance", std::max<int64_t>(1, reach / 2), 1, reach),
            IntegerParam("top_from_layer", 4, 0, kMaxLayers),
            FlagParam("top_all_rows"),
            FlagParam("top_all_or_none")};
  }

  absl::Status Validate(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t limit = spec.Int("distance_limit");
    if (limit > limits.reach() && limit != kNoCeiling) {
      return absl::InvalidArgumentError(
          absl::StrCat("lm_infinite.distance_limit is ", limit, ", must be in [1, ", limits.reach(),
                       "] for this model, or ", kNoCeiling, " for no ceiling (an ablation)"));
    }
    if (limits.reach() == limits.trained_length) return absl::OkStatus();
    for (const char* name : {"window", "distance_limit"}) {
      if (spec.Int(name) == limits.reach()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "lm_infinite.", name, " is ", spec.Int(name), ", must be ", limits.reach(),
          ", the length that the position scheme reaches: shorter distances need no scaled "
          "positions"));
    }
    return absl::OkStatus();
  }

  LegalRow legal() const override {
    return {.dynamic = "distances never exceed the window, so there is no length to follow",
            .coca_slack = "pinned distances change the logits of slack CoCA"};
  }

  AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits&) const override {
    using Stage = AttentionStage;
    const int64_t window = spec.Int("window");
    const int64_t limit = spec.Int("distance_limit");
    AttentionPlan plan;
    plan.retention = {window, static_cast<int>(spec.Int("num_sinks"))};
    plan.stages.push_back({.band_end = window});
    if (plan.retention.num_sinks > 0) {
      const bool pinned = limit != kNoCeiling;
      plan.stages.push_back(
          {.keys = Stage::Keys::kSinks,
           .distance = pinned ? Stage::Distance::kPinned : Stage::Distance::kClamped,
           .band_begin = window,
           .distance_limit = pinned ? limit : kUnbounded});
    }
    plan.top_tokens.count = static_cast<int>(spec.Int("top_tokens"));
    if (plan.top_tokens.count == 0) return plan;
    plan.top_tokens.first_layer = static_cast<int>(spec.Int("top_from_layer"));
    plan.top_tokens.all_rows = spec.Flag("top_all_rows");
    plan.top_tokens.all_or_none = spec.Flag("top_all_or_none");
    // Every token may be chosen: all of them stay, not rotated.
    plan.retention.window_tokens = kUnbounded;
    plan.key_form = KeyForm::kRaw;
    plan.stages.push_back({.keys = Stage::Keys::kTopTokens,
                           .distance = Stage::Distance::kPinned,
                           .band_begin = window,
                           .distance_limit = spec.Int("top_distance")});
    return plan;
  }

 private:
  static constexpr int64_t kNoCeiling = int64_t{1} << 31;
};

}  // namespace

const AttentionStrategy& LmInfinite() {
  static const LmInfiniteStrategy strategy;
  return strategy;
}

}  // namespace folio
