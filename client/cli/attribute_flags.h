#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace folio::cli {

// What the owner of a document says of it.
struct AttributeFlags {
  std::vector<std::string> labels;  // KEY=VALUE
  std::optional<std::string> ttl;
};

CLI::Option* AddLabelFlag(CLI::App& app, AttributeFlags& flags, const std::string& help);
void AddTtlFlag(CLI::App& app, AttributeFlags& flags);

// REQUIRES: what CLI11 has accepted.
std::map<std::string, std::string> LabelsOf(const AttributeFlags& flags);
// Zero: none, or not said.
absl::Duration TtlOf(const AttributeFlags& flags);

}  // namespace folio::cli
