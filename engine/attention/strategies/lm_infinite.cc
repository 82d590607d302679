#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/attention/strategies/strategies.h"

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

  std::vector<StrategyParam> Params(const StrategySpec& spec,
                                    const StrategyLimits& limits) const override {
    const int64_t reach = limits.reach();
    const int64_t window = std::clamp<int64_t>(spec.Param("window").value_or(reach), 1, reach);
    return {{"num_sinks", 10, 0, 1024},
            {"window", reach, 1, reach},
            {"distance_limit", window, 1, kNoCeiling},
            {"top_tokens", 0, 0, 4096},
            {"top_distance", std::max<int64_t>(1, reach / 2), 1, reach},
            {"top_from_layer", 4, 0, 1024},
            {"top_all_rows", 0, 0, 1},
            {"top_all_or_none", 0, 0, 1}};
  }

  absl::Status Validate(const StrategySpec& spec, const StrategyLimits& limits) const override {
    const int64_t limit = *spec.Param("distance_limit");
    if (limit > limits.reach() && limit != kNoCeiling) {
      return absl::InvalidArgumentError(
          absl::StrCat("lm_infinite.distance_limit is ", limit, ", must be in [1, ", limits.reach(),
                       "] for this model, or ", kNoCeiling, " for no ceiling (an ablation)"));
    }
    if (limits.reach() == limits.trained_length) return absl::OkStatus();
    for (const char* name : {"window", "distance_limit"}) {
      if (*spec.Param(name) == limits.reach()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "lm_infinite.", name, " is ", *spec.Param(name), ", must be ", limits.reach(),
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
    const int64_t window = *spec.Param("window");
    const int64_t limit = *spec.Param("distance_limit");
    AttentionPlan plan;
    plan.retention = {window, static_cast<int>(*spec.Param("num_sinks"))};
    plan.stages.push_back({.band_end = window});
    if (plan.retention.num_sinks > 0) {
      const bool pinned = limit != kNoCeiling;
      plan.stages.push_back(
          {.keys = Stage::Keys::kSinks,
           .distance = pinned ? Stage::Distance::kPinned : Stage::Distance::kClamped,
           .band_begin = window,
           .distance_limit = pinned ? limit : kUnbounded});
    }
    plan.top_tokens.count = static_cast<int>(*spec.Param("top_tokens"));
    if (plan.top_tokens.count == 0) return plan;
    plan.top_tokens.first_layer = static_cast<int>(*spec.Param("top_from_layer"));
    plan.top_tokens.all_rows = *spec.Param("top_all_rows") != 0;
    plan.top_tokens.all_or_none = *spec.Param("top_all_or_none") != 0;
    // Every token may be chosen: all of them stay, not rotated.
    plan.retention.window_tokens = kUnbounded;
    plan.key_form = KeyForm::kRaw;
    plan.stages.push_back({.keys = Stage::Keys::kTopTokens,
                           .distance = Stage::Distance::kPinned,
                           .band_begin = window,
                           .distance_limit = *spec.Param("top_distance")});
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
