#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace folio {

// What a parameter of a strategy or position scheme may be: a whole number, a real one, a flag, or
// the name of one of several choices.
enum class ParamKind : uint8_t { kInteger, kReal, kFlag, kChoice };
using ParamValue = std::variant<int64_t, double, bool, std::string>;

// Values by the names of their parameters.
using ParamList = std::vector<std::pair<std::string, ParamValue>>;

// One parameter with its range and default for a loaded model.
struct Param {
  std::string name;
  ParamKind kind = ParamKind::kInteger;
  ParamValue default_value;
  // Of numbers; both bounds are inclusive.
  double min = 0;
  double max = 0;
  // Names of a choice.
  std::vector<std::string> choices = {};
};

// A strategy or position scheme by name with its parameters, as a request or a checkpoint gives
// them (some may be missing, whole numbers may stand for real ones and 0 and 1 for flags) or as the
// registry resolved them: all present, in canonical order, each of its parameter's own type.
template <typename Kind>
struct MethodSpec {
  std::string name;
  ParamList params;

  bool operator==(const MethodSpec&) const = default;

  // Null: not given.
  const ParamValue* Find(const std::string& param) const {
    for (const auto& [known, value] : params) {
      if (known == param) return &value;
    }
    return nullptr;
  }
  // Of a resolved spec that has such a parameter.
  int64_t Int(const std::string& param) const { return std::get<int64_t>(*Find(param)); }
  double Real(const std::string& param) const { return std::get<double>(*Find(param)); }
  bool Flag(const std::string& param) const { return std::get<bool>(*Find(param)); }
  const std::string& Choice(const std::string& param) const {
    return std::get<std::string>(*Find(param));
  }
  // Of any spec: what is given if it is a whole number.
  int64_t IntOr(const std::string& param, int64_t otherwise) const {
    const ParamValue* given = Find(param);
    if (given == nullptr) return otherwise;
    if (const auto* whole = std::get_if<int64_t>(given)) return *whole;
    const auto* real = std::get_if<double>(given);
    const bool fits = real != nullptr && *real > -9e15 && *real < 9e15;
    return fits ? static_cast<int64_t>(*real) : otherwise;
  }
};

}  // namespace folio
