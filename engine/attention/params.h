#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/types/param.h"

namespace folio {

Param IntegerParam(std::string name, int64_t default_value, int64_t min, int64_t max);
Param RealParam(std::string name, double default_value, double min, double max);
// false unless given.
Param FlagParam(std::string name);

// The names of an enumeration's values; the first is the default.
template <typename Enum>
struct NamedValue {
  const char* name;
  Enum value;
};
template <typename Enum, size_t count>
Param ChoiceParam(std::string name, const NamedValue<Enum> (&values)[count]) {
  Param param = {std::move(name), ParamKind::kChoice, std::string(values[0].name)};
  for (const NamedValue<Enum>& value : values) param.choices.emplace_back(value.name);
  return param;
}
// REQUIRES: `name` is one of them, as in a resolved spec.
template <typename Enum, size_t count>
Enum ValueOf(const NamedValue<Enum> (&values)[count], const std::string& name) {
  size_t at = 0;
  while (at + 1 < count && name != values[at].name) ++at;
  return values[at].value;
}

// All of `params` in their order, given ones checked and brought to their type, the others at their
// defaults. Errors: INVALID_ARGUMENT naming method, parameter and value, with the range or the
// names of the choices.
absl::StatusOr<ParamList> ResolveParams(const std::string& method, const std::vector<Param>& params,
                                        const ParamList& given);

}  // namespace folio
