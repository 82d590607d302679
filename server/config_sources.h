#pragma once

#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

// Where values of flags come from beside the command line: an environment variable and a file, each
// for every flag. The command line goes before the environment, that before the file, that before
// the default.
namespace folio::server {

// FOLIO_KV_BYTES for --kv-bytes.
std::string EnvironmentName(const std::string& flag);

// Gives flags that have no value yet those of the environment; empty variables are as unset.
// Several values of a flag have a ; between them. To be called when `app` has read the command
// line. Errors: INVALID_ARGUMENT naming the variable.
absl::Status ReadEnvironment(CLI::App* app);

// Gives flags that still have no value those of a TOML file, whose keys are the names of flags
// without dashes in front, and the dashes inside may be underscores. Errors: INVALID_ARGUMENT
// naming the file and the line: it cannot be read, a key is no flag or is there twice, a value is
// not of its kind.
absl::Status ReadConfigFile(const std::string& path, CLI::App* app);

// The values that the variables behind the flags have now, as such a file.
std::string WriteConfig(CLI::App* app);

}  // namespace folio::server
