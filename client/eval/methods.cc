#include "client/eval/methods.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/strategy.h"

namespace folio::eval {
namespace {

// A piece that sets a parameter goes on with the method before it: "a:x=1" "y=2".
std::vector<std::string> SplitMethods(const std::string& text) {
  std::vector<std::string> methods;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::string first = std::vector<std::string>(absl::StrSplit(piece, '+')).front();
    const bool goes_on = absl::StrContains(first, '=') && !absl::StrContains(first, ':');
    if (goes_on && !methods.empty()) {
      absl::StrAppend(&methods.back(), ",", piece);
    } else {
      methods.emplace_back(piece);
    }
  }
  return methods;
}

}  // namespace

absl::StatusOr<std::vector<Method>> ParseMethods(const std::string& text) {
  std::vector<Method> methods;
  for (const std::string& name : SplitMethods(text)) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits('+', 1));
    Method method;
    method.name = name;
    auto strategy = client::ParseStrategy(parts.first);
    if (!strategy.ok()) return strategy.status();
    method.strategy = *std::move(strategy);
    if (!parts.second.empty()) {
      auto position = client::ParsePosition(parts.second);
      if (!position.ok()) return position.status();
      method.position = *std::move(position);
    }
    methods.push_back(std::move(method));
  }
  if (methods.empty()) return absl::InvalidArgumentError("no strategy is named");
  return methods;
}

}  // namespace folio::eval
