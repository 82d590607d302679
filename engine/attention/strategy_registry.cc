#include "engine/attention/strategy_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/attention/strategies/strategies.h"
#include "engine/base/status_macros.h"

namespace folio {

namespace {

std::vector<const AttentionStrategy*>& Rows() {
  static std::vector<const AttentionStrategy*> rows = {
      &Full(),       &Truncation(), &SlidingWindow(), &Streaming(),
      &LmInfinite(), &LongHeads(),  &RectifiedRope(),
  };
  return rows;
}

}  // namespace

const std::vector<const AttentionStrategy*>& AllStrategies() { return Rows(); }

bool AddStrategy(const AttentionStrategy* strategy) {
  Rows().push_back(strategy);
  return true;
}

const AttentionStrategy* FindStrategy(const std::string& name) {
  for (const AttentionStrategy* strategy : AllStrategies()) {
    if (strategy->name() == name) return strategy;
  }
  return nullptr;
}

absl::StatusOr<StrategySpec> ResolveStrategySpec(const StrategySpec& spec,
                                                 const StrategyLimits& limits) {
  const AttentionStrategy* strategy = FindStrategy(spec.name);
  if (strategy == nullptr) {
    const auto append_name = [](std::string* out, const AttentionStrategy* s) {
      out->append(s->name());
    };
    return absl::InvalidArgumentError(
        absl::StrCat("unknown strategy '", spec.name,
                     "', must be one of: ", absl::StrJoin(AllStrategies(), ", ", append_name)));
  }
  const std::vector<StrategyParam> params = strategy->Params(spec, limits);
  for (const auto& [name, value] : spec.params) {
    const bool known = std::any_of(params.begin(), params.end(),
                                   [&n = name](const StrategyParam& p) { return p.name == n; });
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(spec.name, " has no parameter '", name, "'"));
    }
  }
  StrategySpec resolved;
  resolved.name = spec.name;
  for (const StrategyParam& param : params) {
    const int64_t value = spec.Param(param.name).value_or(param.default_value);
    if (value < param.min || value > param.max) {
      return absl::InvalidArgumentError(absl::StrCat(spec.name, ".", param.name, " is ", value,
                                                     ", must be in [", param.min, ", ", param.max,
                                                     "] for this model"));
    }
    resolved.params.emplace_back(param.name, value);
  }
  FOLIO_RETURN_IF_ERROR(strategy->Validate(resolved, limits));
  return resolved;
}

}  // namespace folio
