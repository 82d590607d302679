#include "engine/attention/strategy_registry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/attention/strategies/strategies.h"
#include "engine/base/quoted.h"
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
        absl::StrCat("unknown strategy ", Quoted(spec.name),
                     ", must be one of: ", absl::StrJoin(AllStrategies(), ", ", append_name)));
  }
  StrategySpec resolved;
  resolved.name = spec.name;
  FOLIO_ASSIGN_OR_RETURN(resolved.params,
                         ResolveParams(spec.name, strategy->Params(spec, limits), spec.params));
  FOLIO_RETURN_IF_ERROR(strategy->Validate(resolved, limits));
  return resolved;
}

}  // namespace folio
