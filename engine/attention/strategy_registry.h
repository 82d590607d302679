#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_strategy.h"

namespace folio {

// All strategies, one row each, in the order of the documentation.
const std::vector<const AttentionStrategy*>& AllStrategies();

// Adds a row at the end. Before the first engine or catalogue is made; not thread-safe. Returns
// true.
bool AddStrategy(const AttentionStrategy* strategy);

// nullptr if there is none of that name.
const AttentionStrategy* FindStrategy(const std::string& name);

// Fills in defaults, puts parameters in canonical order and checks them.
// Errors: INVALID_ARGUMENT for an unknown strategy or parameter, or a value outside its range.
absl::StatusOr<StrategySpec> ResolveStrategySpec(const StrategySpec& spec,
                                                 const StrategyLimits& limits);

}  // namespace folio
