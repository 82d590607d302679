#include "engine/attention/params.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Every whole number up to this one is a double.
constexpr double kMaxWhole = 9007199254740992.0;

bool IsWhole(double value) { return std::abs(value) <= kMaxWhole && value == std::floor(value); }

std::string Shown(double value) {
  return IsWhole(value) ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
}

struct Show {
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const { return Shown(value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return Quoted(value); }
};

// A number, or NaN.
double NumberOf(const ParamValue& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  const auto* real = std::get_if<double>(&value);
  return real != nullptr ? *real : NAN;
}

std::string Expected(const Param& param, const ParamValue& value) {
  std::string range =
      absl::StrCat("in [", Shown(param.min), ", ", Shown(param.max), "] for this model");
  switch (param.kind) {
    case ParamKind::kInteger:
      return IsWhole(NumberOf(value)) ? range : absl::StrCat("a whole number ", range);
    case ParamKind::kReal:
      return range;
    case ParamKind::kFlag:
      return "true or false";
    case ParamKind::kChoice:
      return absl::StrCat("one of ", absl::StrJoin(param.choices, ", "));
  }
  return "";
}

// `value` as a parameter of this kind holds it; false where it is of another kind or out of range.
bool Convert(const Param& param, const ParamValue& value, ParamValue* to) {
  const double number = NumberOf(value);
  const bool in_range = number >= param.min && number <= param.max;
  switch (param.kind) {
    case ParamKind::kInteger:
      if (!in_range || !IsWhole(number)) return false;
      *to = static_cast<int64_t>(number);
      return true;
    case ParamKind::kReal:
      *to = number;
      return in_range;
    case ParamKind::kFlag:
      *to = number == 1 || value == ParamValue(true);
      return std::holds_alternative<bool>(value) || number == 0 || number == 1;
    case ParamKind::kChoice:
      *to = value;
      return std::holds_alternative<std::string>(value) &&
             std::count(param.choices.begin(), param.choices.end(), std::get<std::string>(value));
  }
  return false;
}

}  // namespace

Param IntegerParam(std::string name, int64_t default_value, int64_t min, int64_t max) {
  return {std::move(name), ParamKind::kInteger, default_value, static_cast<double>(min),
          static_cast<double>(max)};
}

Param RealParam(std::string name, double default_value, double min, double max) {
  return {std::move(name), ParamKind::kReal, default_value, min, max};
}

Param FlagParam(std::string name) { return {std::move(name), ParamKind::kFlag, false, 0, 1}; }

absl::StatusOr<ParamList> ResolveParams(const std::string& method, const std::vector<Param>& params,
                                        const ParamList& given) {
  for (const auto& [name, value] : given) {
    const bool known = std::any_of(params.begin(), params.end(),
                                   [&n = name](const Param& param) { return param.name == n; });
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(method, " has no parameter ", Quoted(name)));
    }
  }
  ParamList resolved;
  for (const Param& param : params) {
    const auto of_name = std::find_if(given.begin(), given.end(),
                                      [&](const auto& item) { return item.first == param.name; });
    const ParamValue& value = of_name == given.end() ? param.default_value : of_name->second;
    ParamValue converted;
    if (!Convert(param, value, &converted)) {
      return absl::InvalidArgumentError(absl::StrCat(method, ".", param.name, " is ",
                                                     std::visit(Show(), value), ", must be ",
                                                     Expected(param, value)));
    }
    resolved.emplace_back(param.name, std::move(converted));
  }
  return resolved;
}

}  // namespace folio
