#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/params.h"
#include "engine/types/attention_plan.h"
#include "engine/types/request.h"

namespace folio {

// What a strategy may assume about the model and the KV cache.
struct StrategyLimits {
  int trained_length = 0;
  int page_tokens = 0;
  // Length that the position scheme of the request reaches; 0: the trained length.
  int extended_length = 0;

  int reach() const { return extended_length > trained_length ? extended_length : trained_length; }
};

// Why a strategy does not go with a kind of positions; null: it does (docs/methods.md, section 12).
struct LegalRow {
  const char* static_scheme = nullptr;
  const char* dynamic = nullptr;
  const char* entropy = nullptr;
  const char* alibi = nullptr;
  const char* coca_strict = nullptr;
  const char* coca_slack = nullptr;
  // A strategy keeps the windows that layers have of their own only if it says so.
  const char* by_layer =
      "layers of this model see windows of their own, which full and truncation alone keep";
};

// A long-context method as data: turns parameters into an AttentionPlan and nothing else.
// Stateless and const: safe from any thread.
class AttentionStrategy {
 public:
  virtual ~AttentionStrategy() = default;

  virtual std::string name() const = 0;
  // Paper or code that defines it.
  virtual std::string source() const = 0;

  // The parameters with their ranges and defaults for this model, in canonical order. Defaults may
  // depend on values that `spec` gives explicitly.
  virtual std::vector<Param> Params(const StrategySpec& spec,
                                    const StrategyLimits& limits) const = 0;

  // Rules between parameters. Called with every parameter present and inside its range.
  // Errors: INVALID_ARGUMENT naming parameter, value and limit.
  virtual absl::Status Validate(const StrategySpec&, const StrategyLimits&) const {
    return absl::OkStatus();
  }

  virtual LegalRow legal() const { return {}; }

  // REQUIRES: `spec` was resolved by ResolveStrategySpec.
  virtual AttentionPlan Plan(const StrategySpec& spec, const StrategyLimits& limits) const = 0;

  // Changes what in its plan depends on where the prompt ends; most plans do not.
  virtual void FitToPrompt(int64_t /*prompt_tokens*/, AttentionPlan*) const {}
};

}  // namespace folio
