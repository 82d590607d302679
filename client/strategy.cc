#include "client/strategy.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace folio::client {
namespace {

void AddParameter(const char* name, bool is_set, uint32_t value,
                  std::vector<std::string>* parameters) {
  if (is_set) parameters->push_back(absl::StrCat(name, "=", value));
}

}  // namespace

absl::StatusOr<v1::AttentionStrategy> StrategyFromName(const std::string& name) {
  v1::AttentionStrategy strategy;
  if (name == "full") {
    strategy.mutable_full();
  } else if (name == "lm_infinite") {
    strategy.mutable_lm_infinite();
  } else if (name == "long_heads") {
    strategy.mutable_long_heads();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown strategy '", name, "': choose full, lm_infinite or long_heads"));
  }
  return strategy;
}

std::string StrategyName(const v1::AttentionStrategy& strategy) {
  switch (strategy.strategy_case()) {
    case v1::AttentionStrategy::kFull:
      return "full";
    case v1::AttentionStrategy::kLmInfinite:
      return "lm_infinite";
    case v1::AttentionStrategy::kLongHeads:
      return "long_heads";
    case v1::AttentionStrategy::STRATEGY_NOT_SET:
      break;
  }
  return "default";
}

std::string DescribeStrategy(const v1::AttentionStrategy& strategy) {
  std::vector<std::string> parameters;
  if (strategy.has_lm_infinite()) {
    const v1::LmInfinite& p = strategy.lm_infinite();
    AddParameter("num_sinks", p.has_num_sinks(), p.num_sinks(), &parameters);
    AddParameter("window", p.has_window(), p.window(), &parameters);
    AddParameter("distance_limit", p.has_distance_limit(), p.distance_limit(), &parameters);
  } else if (strategy.has_long_heads()) {
    const v1::LongHeads& p = strategy.long_heads();
    AddParameter("chunk_size", p.has_chunk_size(), p.chunk_size(), &parameters);
    AddParameter("attention_length", p.has_attention_length(), p.attention_length(), &parameters);
    AddParameter("begin_selective_length", p.has_begin_selective_length(),
                 p.begin_selective_length(), &parameters);
  }
  const std::string name = StrategyName(strategy);
  if (parameters.empty()) return name;
  return absl::StrCat(name, "(", absl::StrJoin(parameters, ","), ")");
}

}  // namespace folio::client
