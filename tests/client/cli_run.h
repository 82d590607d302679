// Runs the command line tool within a test.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "tests/client/fake_server.h"

namespace folio::testing {

struct CliRun {
  cli::ExitCode code;
  std::string out;
  std::string err;
};

// `folio --server <the fake one> arguments...` with `input` on stdin.
inline CliRun RunFolio(const FakeServer& server, std::vector<std::string> arguments,
                       const std::string& input = "") {
  arguments.insert(arguments.begin(), {"--server", server.target()});
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  cli::Console console{.in = in, .out = out, .err = err};
  const cli::ExitCode code = cli::RunCli(arguments, console, client::CancelToken());
  return {code, out.str(), err.str()};
}

}  // namespace folio::testing
