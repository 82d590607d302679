#include "client/cli/strategy_flags.h"

#include "absl/strings/str_cat.h"
#include "client/strategy.h"

namespace folio::cli {
namespace {

constexpr char kGroup[] = "Attention strategy";

// The name of a parameter that is set but belongs to LongHeads (LM-Infinite); nullptr if there is
// none.
const char* LongHeadsParameter(const StrategyParameters& parameters) {
  if (parameters.chunk_size) return "--chunk-size";
  if (parameters.attention_length) return "--attention-length";
  if (parameters.begin_selective_length) return "--begin-selective-length";
  return nullptr;
}

const char* LmInfiniteParameter(const StrategyParameters& parameters) {
  if (parameters.num_sinks) return "--num-sinks";
  if (parameters.window) return "--window";
  if (parameters.distance_limit) return "--distance-limit";
  return nullptr;
}

void FillLmInfinite(const StrategyParameters& parameters, v1::LmInfinite* strategy) {
  if (parameters.num_sinks) strategy->set_num_sinks(*parameters.num_sinks);
  if (parameters.window) strategy->set_window(*parameters.window);
  if (parameters.distance_limit) strategy->set_distance_limit(*parameters.distance_limit);
}

void FillLongHeads(const StrategyParameters& parameters, v1::LongHeads* strategy) {
  if (parameters.chunk_size) strategy->set_chunk_size(*parameters.chunk_size);
  if (parameters.attention_length) strategy->set_attention_length(*parameters.attention_length);
  if (parameters.begin_selective_length) {
    strategy->set_begin_selective_length(*parameters.begin_selective_length);
  }
}

}  // namespace

void AddStrategyParameters(CLI::App& app, StrategyParameters& parameters) {
  app.add_option("--chunk-size", parameters.chunk_size, "long_heads: tokens in one chunk")
      ->group(kGroup);
  app.add_option("--attention-length", parameters.attention_length,
                 "long_heads: tokens that one head attends to")
      ->group(kGroup);
  app.add_option("--begin-selective-length", parameters.begin_selective_length,
                 "long_heads: tokens before this index use plain attention")
      ->group(kGroup);
  app.add_option("--num-sinks", parameters.num_sinks,
                 "lm_infinite: starting tokens that stay visible")
      ->group(kGroup);
  app.add_option("--window", parameters.window, "lm_infinite: recent tokens that stay visible")
      ->group(kGroup);
  app.add_option("--distance-limit", parameters.distance_limit,
                 "lm_infinite: effective distance of the starting tokens")
      ->group(kGroup);
}

void AddStrategyFlags(CLI::App& app, StrategyFlags& flags) {
  app.add_option("--strategy", flags.name,
                 "full, lm_infinite or long_heads (default: the server's)")
      ->group(kGroup);
  AddStrategyParameters(app, flags.parameters);
}

absl::StatusOr<v1::AttentionStrategy> BuildStrategy(const std::string& name,
                                                    const StrategyParameters& parameters,
                                                    ForeignParameters foreign) {
  absl::StatusOr<v1::AttentionStrategy> strategy = client::StrategyFromName(name);
  if (!strategy.ok()) return strategy;
  const char* misplaced = nullptr;
  if (!strategy->has_long_heads()) misplaced = LongHeadsParameter(parameters);
  if (!strategy->has_lm_infinite() && misplaced == nullptr) {
    misplaced = LmInfiniteParameter(parameters);
  }
  if (misplaced != nullptr && foreign == ForeignParameters::kRefuse) {
    return absl::InvalidArgumentError(
        absl::StrCat(misplaced, " is not a parameter of the strategy ", name));
  }
  if (strategy->has_lm_infinite()) FillLmInfinite(parameters, strategy->mutable_lm_infinite());
  if (strategy->has_long_heads()) FillLongHeads(parameters, strategy->mutable_long_heads());
  return strategy;
}

absl::StatusOr<std::optional<v1::AttentionStrategy>> BuildStrategy(const StrategyFlags& flags) {
  if (flags.name.empty()) {
    const char* misplaced = LongHeadsParameter(flags.parameters);
    if (misplaced == nullptr) misplaced = LmInfiniteParameter(flags.parameters);
    if (misplaced == nullptr) return std::optional<v1::AttentionStrategy>();
    return absl::InvalidArgumentError(absl::StrCat(misplaced, " needs --strategy"));
  }
  absl::StatusOr<v1::AttentionStrategy> strategy =
      BuildStrategy(flags.name, flags.parameters, ForeignParameters::kRefuse);
  if (!strategy.ok()) return strategy.status();
  return std::optional<v1::AttentionStrategy>(*std::move(strategy));
}

}  // namespace folio::cli
