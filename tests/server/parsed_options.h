#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "server/options.h"
#include "tests/scratch_dir.h"

namespace folio::server {

// What folio-server makes of a command line.
struct Parsed {
  ParseResult result = ParseResult::kRun;
  ServerOptions options;
  int exit_code = -1;
};

inline Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "folio-server");
  Parsed parsed;
  parsed.result = ParseOptions(static_cast<int>(arguments.size()), arguments.data(),
                               &parsed.options, &parsed.exit_code);
  return parsed;
}

// An environment variable while it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), /*overwrite=*/1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

// A file for --config while it lives.
class ConfigText {
 public:
  explicit ConfigText(const std::string& text) : path_(dir_.Write("folio.toml", text)) {}
  const std::string& path() const { return path_; }
  const char* flag() const { return flag_.c_str(); }

 private:
  const ScratchDir dir_;
  const std::string path_;
  const std::string flag_ = "--config=" + path_;
};

}  // namespace folio::server
