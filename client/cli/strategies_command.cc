#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/json_lines.h"

namespace folio::cli {
namespace {

// The default and what else may be given.
std::string Values(const v1::MethodParameter& parameter) {
  switch (parameter.kind()) {
    case v1::MethodParameter::KIND_FLAG:
      return parameter.default_value() != 0 ? "true  or false" : "false  or true";
    case v1::MethodParameter::KIND_CHOICE:
      return absl::StrCat(parameter.default_choice(), "  one of ",
                          absl::StrJoin(parameter.choices(), ", "));
    default:
      return absl::StrCat(parameter.default_value(), "  in [", parameter.min(), ", ",
                          parameter.max(), "]");
  }
}

void PrintMethod(const v1::Method& method, std::ostream& out) {
  out << method.name() << "  (" << method.source() << ")\n";
  if (!method.refused().empty()) out << "    not on this model: " << method.refused() << "\n";
  for (const v1::MethodParameter& parameter : method.parameters()) {
    out << "    " << parameter.name() << "=" << Values(parameter) << "\n";
  }
  for (const v1::Refusal& refusal : method.refused_positions()) {
    out << "    not with " << refusal.position() << ": " << refusal.reason() << "\n";
  }
}

absl::Status Strategies(Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto list = (*client)->ListStrategies({.cancel = invocation.cancel});
  if (!list.ok()) return list.status();
  std::ostream& out = invocation.console.out;
  if (invocation.json) {
    WriteJsonLine(out, *list);
    return absl::OkStatus();
  }
  out << "strategies (--strategy NAME:KEY=VALUE,...)\n";
  for (const v1::Method& method : list->strategies()) PrintMethod(method, out);
  out << "\nposition schemes (--position NAME:KEY=VALUE,...)\n";
  for (const v1::Method& method : list->positions()) PrintMethod(method, out);
  return absl::OkStatus();
}

}  // namespace

Command AddStrategiesCommand(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "strategies", "Lists strategies and position schemes, and what goes together on this model");
  return {app, [](Invocation& invocation) { return Strategies(invocation); }};
}

}  // namespace folio::cli
