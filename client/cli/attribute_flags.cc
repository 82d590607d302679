#include "client/cli/attribute_flags.h"

namespace folio::cli {
namespace {

std::string CheckLabel(const std::string& text) {
  const size_t sign = text.find('=');
  return sign == 0 || sign == std::string::npos ? "'" + text + "' must be KEY=VALUE" : "";
}

std::string CheckTtl(const std::string& text) {
  absl::Duration ttl;
  const bool ok = absl::ParseDuration(text, &ttl) && ttl >= absl::ZeroDuration() &&
                  ttl != absl::InfiniteDuration();
  return ok ? "" : "'" + text + "' must be a duration such as 90s, 30m or 24h, or 0";
}

}  // namespace

CLI::Option* AddLabelFlag(CLI::App& app, AttributeFlags& flags, const std::string& help) {
  return app.add_option("--label", flags.labels, help)
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->check(CheckLabel, "", "");
}

void AddTtlFlag(CLI::App& app, AttributeFlags& flags) {
  app.add_option("--ttl", flags.ttl,
                 "Delete it when nobody has asked about it for so long: 90s, 30m, 24h; 0: never")
      ->check(CheckTtl, "", "");
}

std::map<std::string, std::string> LabelsOf(const AttributeFlags& flags) {
  std::map<std::string, std::string> labels;
  for (const std::string& label : flags.labels) {
    const size_t sign = label.find('=');
    labels[label.substr(0, sign)] = label.substr(sign + 1);
  }
  return labels;
}

absl::Duration TtlOf(const AttributeFlags& flags) {
  absl::Duration ttl = absl::ZeroDuration();
  if (flags.ttl.has_value()) absl::ParseDuration(*flags.ttl, &ttl);
  return ttl;
}

}  // namespace folio::cli
