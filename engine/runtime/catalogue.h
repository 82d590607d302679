#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/types/param.h"

namespace folio {

// One strategy or position scheme as a client sees it, with the ranges and defaults for the loaded
// model. Plain data.
struct MethodInfo {
  std::string name;
  // Paper or code that defines it.
  std::string source;
  std::vector<Param> params;
  // Of a strategy: the position schemes that do not go with it on this model, with the reason.
  std::vector<std::pair<std::string, std::string>> refused_positions;
  // Why this model cannot use it at all.
  std::optional<std::string> refused;
};

struct Catalogue {
  std::vector<MethodInfo> strategies;
  std::vector<MethodInfo> positions;
};

struct AttentionModel;
Catalogue MakeCatalogue(const AttentionModel& model);

}  // namespace folio
