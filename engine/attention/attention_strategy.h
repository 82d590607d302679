#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/types/attention_plan.h"
#include "engine/types/request.h"

namespace folio {

// What a strategy may assume about the model and the KV cache.
struct StrategyLimits {
  int trained_length = 0;
  int page_tokens = 0;
};

// One integer parameter of a strategy: both bounds are inclusive.
struct StrategyParam {
  std::string name;
  int64_t default_value = 0;
  int64_t min = 0;
  int64_t max = 0;
};

// A long-context method as data: turns parameters into an AttentionPlan and nothing else.
// Stateless and const: safe from any thread.
class AttentionStrategy {
 public:
  virtual ~AttentionStrategy() = default;

  virtual std::string name() const = 0;

  // The parameters with their ranges and defaults for this model, in canonical order. Defaults may
  // depend on values that `spec` gives explicitly.
  virtual std::vector<StrategyParam> Params(const StrategySpec& spec,
                                            const StrategyLimits& limits) const = 0;

  // Rules between parameters. Called with every parameter present and inside its range.
  // Errors: INVALID_ARGUMENT naming parameter, value and limit.
  virtual absl::Status Validate(const StrategySpec& spec, const StrategyLimits& limits) const = 0;

  // REQUIRES: `spec` was resolved by ResolveStrategySpec.
  virtual AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) const = 0;
};

}  // namespace folio
