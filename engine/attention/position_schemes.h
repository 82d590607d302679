#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/types/attention_plan.h"
#include "engine/types/param.h"
#include "engine/types/position.h"

namespace folio {

// Columns of the legality table.
enum class PositionColumn : uint8_t {
  kPlain,    // the checkpoint's own positions
  kStatic,   // another rotary table
  kDynamic,  // a table that depends on the length of the text
  kEntropy,  // a static table and logits scaled by the number of keys
};

// What a resolved scheme contributes to a plan. The members are those of AttentionPlan.
struct PositionPlan {
  std::shared_ptr<const Rotary> rotary = nullptr;
  std::optional<DynamicBase> dynamic_base = std::nullopt;
  EntropyScale entropy = {};
};

// A position scheme as data: which rotary table, which scale of the logits.
struct PositionScheme {
  std::string name;
  std::string source;
  PositionColumn column = PositionColumn::kPlain;
  // Only checkpoints that were made with it can be read by it.
  bool checkpoint_only = false;
  // Both phases of LongHeads read it (a table the model was tuned with), not the prompt alone.
  bool tuned = false;
  std::vector<Param> (*params)(const RopeModel& model, const PositionRequest& request);
  // How many times the trained length positions may reach.
  double (*extension)(const PositionSpec& spec, const RopeModel& model);
  PositionPlan (*plan)(const PositionSpec& spec, const RopeModel& model);
};

// All schemes, one row each.
const std::vector<PositionScheme>& AllPositionSchemes();

// nullptr if there is none of that name.
const PositionScheme* FindPositionScheme(const std::string& name);

// Fills in defaults, puts parameters in canonical order and checks them. An empty name is the
// checkpoint's own scheme. Errors: INVALID_ARGUMENT naming scheme, parameter and limit.
absl::StatusOr<PositionSpec> ResolvePositionSpec(const PositionSpec& spec, const RopeModel& model,
                                                 const PositionRequest& request);

// The table of the checkpoint's own scheme, for plans that bring none; of schemes that depend on
// the length, the unscaled one.
absl::StatusOr<Rotary> CheckpointRotary(const RopeModel& model);

}  // namespace folio
