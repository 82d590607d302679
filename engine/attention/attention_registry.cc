#include "engine/attention/attention_registry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/attention/plan_check.h"
#include "engine/attention/strategy_registry.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// The checkpoint's own scheme counts as plain, whatever it is.
PositionColumn ColumnOf(const PositionSpec& resolved, const RopeModel& rope) {
  const auto own = ResolvePositionSpec(rope.scheme, rope, {});
  const PositionScheme& scheme = *FindPositionScheme(resolved.name);
  if (own.ok() && *own == resolved) return PositionColumn::kPlain;
  if (resolved.name == rope.scheme.name && scheme.checkpoint_only) return PositionColumn::kPlain;
  return scheme.column;
}

StrategyLimits LimitsUnder(const PositionSpec& position, const AttentionModel& model) {
  StrategyLimits limits = model.limits;
  if (ColumnOf(position, model.rope) == PositionColumn::kPlain) return limits;
  const double factor = FindPositionScheme(position.name)->extension(position, model.rope);
  const double reach = std::floor(factor * model.rope.original_length);
  limits.extended_length = static_cast<int>(std::clamp<double>(reach, 0, 1 << 30));
  return limits;
}

absl::Status About(const char* field, absl::Status status) {
  if (!status.ok()) status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::optional<std::string> Reason(const char* text) {
  if (text == nullptr) return std::nullopt;
  return text;
}

// Only keys that lie un-rotated in pages can be read under a table that changes with every token.
std::optional<std::string> WhyNotUnderChangingTable(const AttentionPlan& plan) {
  if (!plan.dynamic_base) return std::nullopt;
  for (const AttentionStage& stage : plan.stages) {
    if (stage.keys == AttentionStage::Keys::kContext) continue;
    return stage.keys == AttentionStage::Keys::kSinks
               ? "sinks are stored under one table; use the frozen form"
               : "chunks and tokens are compared under one table; use the frozen form";
  }
  return std::nullopt;
}

// -1: there is none of this name.
int FindAdapter(const AttentionModel& model, const std::string& name) {
  if (name.empty()) return -1;
  const auto has_name = [&](const AdapterSpec& adapter) { return adapter.name == name; };
  const auto found = std::ranges::find_if(model.adapters, has_name);
  return found == model.adapters.end() ? -1 : static_cast<int>(found - model.adapters.begin());
}

absl::StatusOr<AdapterSpec> ResolveAdapter(const std::string& name, const AttentionModel& model) {
  if (name.empty()) return AdapterSpec{};
  const int index = FindAdapter(model, name);
  if (index >= 0) return model.adapters[index];
  std::string message = absl::StrCat("no adapter ", Quoted(name), " is loaded; ");
  if (model.adapters.empty()) {
    message += "the server was started without --lora";
  } else {
    message += "GetServerInfo (folio info) lists those that are";
  }
  return absl::NotFoundError(message);
}

}  // namespace

std::optional<std::string> WhyIllegal(const AttentionStrategy& strategy, PositionColumn column,
                                      PositionKind kind) {
  const LegalRow row = strategy.legal();
  if (kind == PositionKind::kAlibi && column != PositionColumn::kPlain) {
    return "an ALiBi model has no rotary positions to scale";
  }
  if (kind == PositionKind::kByLayer && column != PositionColumn::kPlain) {
    return "layers of this model are rotated each in their way, which no scheme but its own knows";
  }
  const bool coca = kind == PositionKind::kCocaSlack || kind == PositionKind::kCocaStrict;
  if (coca && column == PositionColumn::kEntropy) {
    return "entropy scaling was never published for CoCA models";
  }
  const char* of_kind = nullptr;
  if (kind == PositionKind::kAlibi) of_kind = row.alibi;
  if (kind == PositionKind::kByLayer) of_kind = row.by_layer;
  if (kind == PositionKind::kCocaStrict) of_kind = row.coca_strict;
  if (kind == PositionKind::kCocaSlack) of_kind = row.coca_slack;
  if (of_kind != nullptr) return of_kind;
  switch (column) {
    case PositionColumn::kPlain:
      return std::nullopt;
    case PositionColumn::kStatic:
      return Reason(row.static_scheme);
    case PositionColumn::kDynamic:
      return Reason(row.dynamic);
    case PositionColumn::kEntropy:
      return Reason(row.entropy);
  }
  return std::nullopt;
}

absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                               const StrategySpec& default_strategy,
                                               const AttentionModel& model,
                                               const PositionRequest& request) {
  AttentionSpec resolved;
  auto position = ResolvePositionSpec(spec.position, model.rope, request);
  FOLIO_RETURN_IF_ERROR(About("position", position.status()));
  resolved.position = *std::move(position);
  auto adapter = ResolveAdapter(spec.adapter.name, model);
  FOLIO_RETURN_IF_ERROR(About("adapter", adapter.status()));
  resolved.adapter = *std::move(adapter);
  const StrategySpec& wanted = spec.strategy.name.empty() ? default_strategy : spec.strategy;
  auto strategy = ResolveStrategySpec(wanted, LimitsUnder(resolved.position, model));
  FOLIO_RETURN_IF_ERROR(About("strategy", strategy.status()));
  resolved.strategy = *std::move(strategy);
  const PositionColumn column = ColumnOf(resolved.position, model.rope);
  std::optional<std::string> reason =
      WhyIllegal(*FindStrategy(resolved.strategy.name), column, model.kind);
  const AttentionPlan plan = PlanFor(resolved, model);
  if (!reason) reason = WhyNotUnderChangingTable(plan);
  if (!reason) {
    FOLIO_RETURN_IF_ERROR(CheckPlan(plan, model.limits.page_tokens));
    return resolved;
  }
  return About("position", absl::InvalidArgumentError(absl::StrCat(
                               resolved.strategy.name, " cannot be combined with the positions ",
                               resolved.position.name, ": ", *reason)));
}

AttentionPlan PlanFor(const AttentionSpec& resolved, const AttentionModel& model,
                      int64_t prompt_tokens) {
  const AttentionStrategy& strategy = *FindStrategy(resolved.strategy.name);
  AttentionPlan plan = strategy.Plan(resolved.strategy, LimitsUnder(resolved.position, model));
  plan.prompt_tokens = prompt_tokens;
  plan.adapter = FindAdapter(model, resolved.adapter.name);
  strategy.FitToPrompt(prompt_tokens, &plan);
  if (model.kind == PositionKind::kAlibi) return plan;
  const PositionScheme& scheme = *FindPositionScheme(resolved.position.name);
  PositionPlan position = scheme.plan(resolved.position, model.rope);
  plan.rotary = std::move(position.rotary);
  plan.dynamic_base = position.dynamic_base;
  if (position.entropy.base_length > 0) plan.entropy = position.entropy;
  if (plan.dynamic_base) plan.key_form = KeyForm::kRaw;
  const bool scaled =
      !scheme.tuned && ColumnOf(resolved.position, model.rope) != PositionColumn::kPlain;
  if (plan.unscaled_decode && scaled) {
    plan.decode_rotary = std::make_shared<const Rotary>(*CheckpointRotary(model.rope));
    plan.key_form = KeyForm::kRaw;
  }
  return plan;
}

}  // namespace folio
