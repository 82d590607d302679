#include "server/config_sources.h"

// Errors are values here, not exceptions.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

bool IsSwitch(const CLI::Option& option) { return option.get_expected_max() == 0; }

bool TakesSeveral(const CLI::Option& option) {
  return option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

// What the flag itself has against the values, named with where they are from.
absl::Status Give(const std::string& source, const std::vector<std::string>& values,
                  CLI::Option* option) {
  try {
    for (const std::string& value : values) option->add_result(value);
    option->run_callback();
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", error.what()));
  }
  return absl::OkStatus();
}

// --help and the like, which say what to do and not how, are of the command line alone.
bool HasOtherSources(const CLI::Option& option) {
  return option.get_configurable() || !IsSwitch(option);
}

absl::Status GiveFromEnvironment(const std::string& flag, CLI::Option* option) {
  const std::string variable = EnvironmentName(flag);
  const char* const value = std::getenv(variable.c_str());
  if (value == nullptr || *value == '\0' || option->count() > 0) return absl::OkStatus();
  std::vector<std::string> values = {value};
  if (TakesSeveral(*option)) values = absl::StrSplit(value, ';', absl::SkipEmpty());
  return Give(absl::StrCat("environment variable ", variable), values, option);
}

// As it would stand on the command line; nothing for what could not.
std::optional<std::string> TextOf(const toml::node& value) {
  if (const auto* text = value.as_string()) return text->get();
  if (const auto* number = value.as_integer()) return absl::StrCat(number->get());
  if (const auto* number = value.as_floating_point())
    return absl::StrFormat("%.17g", number->get());
  return std::nullopt;
}

absl::StatusOr<std::vector<std::string>> TextsOf(const toml::node& value,
                                                 const CLI::Option& option) {
  if (IsSwitch(option)) {
    const auto* on = value.as_boolean();
    if (on == nullptr) return absl::InvalidArgumentError("must be true or false");
    return std::vector<std::string>{on->get() ? "true" : "false"};
  }
  std::vector<std::string> texts;
  const auto add = [&texts](const toml::node& node) {
    const auto text = TextOf(node);
    if (!text.has_value()) return false;
    texts.push_back(*text);
    return true;
  };
  const toml::array* const list = TakesSeveral(option) ? value.as_array() : nullptr;
  const bool good = list != nullptr ? std::all_of(list->begin(), list->end(), add) : add(value);
  if (good) return texts;
  return absl::InvalidArgumentError(TakesSeveral(option) ? "must be a string or a list of them"
                                                         : "must be a string or a number");
}

std::string Place(const std::string& path, const toml::source_region& region) {
  return region.begin.line == 0 ? path : absl::StrCat(path, ", line ", region.begin.line);
}

class ConfigFile {
 public:
  ConfigFile(const std::string& path, CLI::App* app) : path_(path), app_(app) {}

  absl::Status Take(const std::string& key, const toml::key& at, const toml::node& value) {
    const std::string flag = absl::StrCat("--", absl::StrReplaceAll(key, {{"_", "-"}}));
    const std::string place = Place(path_, at.source());
    CLI::Option* const option = app_->get_option_no_throw(flag);
    if (option == nullptr || !option->get_configurable()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": there is no key ", Quoted(key),
                       "; keys are names of flags without the dashes in front"));
    }
    if (!taken_.insert(option).second) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": ", flag, " is set twice"));
    }
    const auto texts = TextsOf(value, *option);
    if (!texts.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": ", key, " ", texts.status().message()));
    }
    return option->count() > 0 ? absl::OkStatus() : Give(place, *texts, option);
  }

 private:
  const std::string path_;
  CLI::App* const app_;
  std::set<const CLI::Option*> taken_;
};

std::string Literal(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

// A number where reading it gives the same text again, else a string.
std::string Value(const std::string& text) {
  int64_t integer = 0;
  double real = 0;
  if (absl::SimpleAtoi(text, &integer) && absl::StrCat(integer) == text) return text;
  if (absl::SimpleAtod(text, &real) && absl::StrCat(real) == text &&
      text.find('.') != std::string::npos) {
    return text;
  }
  return Literal(text);
}

std::string ValueOf(CLI::Option* option) {
  if (IsSwitch(*option)) return option->count() > 0 && option->as<bool>() ? "true" : "false";
  if (TakesSeveral(*option)) {
    std::vector<std::string> texts;
    for (const std::string& text : option->results()) texts.push_back(Literal(text));
    return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
  }
  option->capture_default_str();
  return Value(option->get_default_str());
}

}  // namespace

std::string EnvironmentName(const std::string& flag) {
  const size_t name = flag.find_first_not_of('-');
  return absl::StrCat("FOLIO_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(flag.substr(name), {{"-", "_"}})));
}

absl::Status ReadEnvironment(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (!HasOtherSources(*option)) continue;
    for (const std::string& name : option->get_lnames()) {
      FOLIO_RETURN_IF_ERROR(GiveFromEnvironment(name, option));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadConfigFile(const std::string& path, CLI::App* app) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
  }
  const toml::parse_result parsed = toml::parse_file(path);
  if (!parsed) {
    return absl::InvalidArgumentError(absl::StrCat(Place(path, parsed.error().source()), ": ",
                                                   std::string(parsed.error().description())));
  }
  ConfigFile file(path, app);
  for (const auto& [key, value] : parsed.table()) {
    FOLIO_RETURN_IF_ERROR(file.Take(std::string(key.str()), key, value));
  }
  return absl::OkStatus();
}

std::string WriteConfig(CLI::App* app) {
  std::string text = "# For --config: keys are names of flags.\n";
  for (CLI::Option* option : app->get_options()) {
    if (!option->get_configurable()) continue;
    absl::StrAppend(&text, "\n# ", option->get_description(), "\n", option->get_lnames().front(),
                    " = ", ValueOf(option), "\n");
  }
  return text;
}

}  // namespace folio::server
