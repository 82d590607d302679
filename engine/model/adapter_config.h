#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace folio {

// Ranks of an adapter, as far as they are read.
inline constexpr int kMaxAdapterRank = 1024;

// What an adapter_config.json says (PEFT's LoraConfig). What is served differently from what it
// asks for is refused when it is read.
struct AdapterConfig {
  int rank = 0;
  double alpha = 0;
  // alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski 2023, A rank stabilization scaling
  // factor for fine-tuning with LoRA).
  bool rank_stabilised = false;
  // Modules by their path or the end of it; empty: every projection inside the layers.
  std::vector<std::string> targets;
  // Layers that are changed; empty: all.
  std::vector<int> layers;
  // Of modules by their path or the end of it, instead of `rank` and `alpha`.
  std::vector<std::pair<std::string, int>> ranks;
  std::vector<std::pair<std::string, double>> alphas;

  // Of the module with this path. Errors: INVALID_ARGUMENT where two patterns are about it.
  struct Numbers {
    int rank = 0;
    double scale = 0;
  };
  absl::StatusOr<Numbers> NumbersOf(const std::string& module) const;
};

// Whether `name` is the path of a module, or ends it behind a dot.
bool NamesModule(std::string_view name, std::string_view module);

// Errors: INVALID_ARGUMENT, and UNIMPLEMENTED for what PEFT has and Folio has not; with the key,
// its value and what to change. A key that is not known may say no more than "off".
absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& what, std::string_view text);

}  // namespace folio
