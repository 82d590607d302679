#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_strategy.h"
#include "engine/attention/position_schemes.h"
#include "engine/types/attention_plan.h"
#include "engine/types/position.h"
#include "engine/types/request.h"

namespace folio {

// What strategies and schemes may assume about a loaded model.
struct AttentionModel {
  StrategyLimits limits;
  PositionKind kind = PositionKind::kRope;
  RopeModel rope;
  // As AttentionPlan::adapter counts them.
  std::vector<AdapterSpec> adapters = {};
};

// Fills in every default of strategy and scheme and checks them, alone and together
// (docs/methods.md, section 12). An empty strategy is `default_strategy`, an empty scheme the
// checkpoint's own. Errors: INVALID_ARGUMENT with the parameter and its limit, or the reason why
// the two do not go together; NOT_FOUND for an adapter that the model does not have.
absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                               const StrategySpec& default_strategy,
                                               const AttentionModel& model,
                                               const PositionRequest& request);

// Why a strategy does not go with a column of positions on a kind of model; nullopt if it does.
std::optional<std::string> WhyIllegal(const AttentionStrategy& strategy, PositionColumn column,
                                      PositionKind kind);

// The plan of a resolved spec for a prompt of `prompt_tokens` tokens (kUnbounded: an upload).
AttentionPlan PlanFor(const AttentionSpec& resolved, const AttentionModel& model,
                      int64_t prompt_tokens = kUnbounded);

}  // namespace folio
