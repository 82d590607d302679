// Names of the attention strategies. Pure functions, thread-safe.
#ifndef FOLIO_CLIENT_STRATEGY_H_
#define FOLIO_CLIENT_STRATEGY_H_

#include <string>

#include "absl/status/statusor.h"
#include "folio/v1/common.pb.h"

namespace folio::client {

// "full", "lm_infinite" or "long_heads", with default parameters.
// Errors: INVALID_ARGUMENT for any other name.
absl::StatusOr<v1::AttentionStrategy> StrategyFromName(const std::string& name);

// The name of a strategy; "default" if none is set.
std::string StrategyName(const v1::AttentionStrategy& strategy);

// Name and the parameters that are set: "long_heads(chunk_size=16,attention_length=512)". The order
// of the parameters is fixed, so that equal strategies give equal text.
std::string DescribeStrategy(const v1::AttentionStrategy& strategy);

}  // namespace folio::client

#endif  // FOLIO_CLIENT_STRATEGY_H_
