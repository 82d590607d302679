#include "engine/runtime/catalogue.h"

#include "engine/attention/attention_registry.h"
#include "engine/attention/strategy_registry.h"

namespace folio {

Catalogue MakeCatalogue(const AttentionModel& model) {
  Catalogue catalogue;
  for (const AttentionStrategy* strategy : AllStrategies()) {
    MethodInfo info;
    info.name = strategy->name();
    info.source = strategy->source();
    info.params = strategy->Params({info.name, {}}, model.limits);
    info.refused = WhyIllegal(*strategy, PositionColumn::kPlain, model.kind);
    for (const PositionScheme& scheme : AllPositionSchemes()) {
      const auto reason = WhyIllegal(*strategy, scheme.column, model.kind);
      if (reason) info.refused_positions.emplace_back(scheme.name, *reason);
    }
    catalogue.strategies.push_back(std::move(info));
  }
  for (const PositionScheme& scheme : AllPositionSchemes()) {
    MethodInfo info;
    info.name = scheme.name;
    info.source = scheme.source;
    info.params = scheme.params(model.rope, {});
    if (scheme.checkpoint_only && model.rope.scheme.name != scheme.name) {
      info.refused = "this checkpoint was not made with it";
    }
    catalogue.positions.push_back(std::move(info));
  }
  return catalogue;
}

}  // namespace folio
