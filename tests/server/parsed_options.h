#pragma once

#include <string>
#include <vector>

#include "server/options.h"

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

}  // namespace folio::server
