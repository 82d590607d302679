// Attention strategies on the command line.
#ifndef FOLIO_CLIENT_CLI_STRATEGY_FLAGS_H_
#define FOLIO_CLIENT_CLI_STRATEGY_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "folio/v1/common.pb.h"

namespace folio::cli {

// Parameters of all strategies; unset ones are left to the server.
struct StrategyParameters {
  std::optional<uint32_t> chunk_size;
  std::optional<uint32_t> attention_length;
  std::optional<uint32_t> begin_selective_length;
  std::optional<uint32_t> num_sinks;
  std::optional<uint32_t> window;
  std::optional<uint32_t> distance_limit;
};

struct StrategyFlags {
  // Empty: the server's default.
  std::string name;
  StrategyParameters parameters;
};

// What happens to parameters that belong to another strategy.
enum class ForeignParameters { kRefuse, kIgnore };

// `parameters` must outlive the parsing of `app`.
void AddStrategyParameters(CLI::App& app, StrategyParameters& parameters);
// --strategy and the parameters. `flags` must outlive the parsing of `app`.
void AddStrategyFlags(CLI::App& app, StrategyFlags& flags);

// Errors: INVALID_ARGUMENT for an unknown name or a parameter that the strategy does not have.
absl::StatusOr<v1::AttentionStrategy> BuildStrategy(const std::string& name,
                                                    const StrategyParameters& parameters,
                                                    ForeignParameters foreign);
// nullopt if no strategy is named.
absl::StatusOr<std::optional<v1::AttentionStrategy>> BuildStrategy(const StrategyFlags& flags);

}  // namespace folio::cli

#endif  // FOLIO_CLIENT_CLI_STRATEGY_FLAGS_H_
