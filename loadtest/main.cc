// The load generator `folio-loadtest`.
//
// Exit codes: 0 = all checks passed (refused requests are part of a result, not a failure), 1 = a
// promise of the API was broken or a greedy answer differs, 2 = wrong command line, 3 = the run was
// not possible.
#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

#include "client/channel.h"
#include "client/status.h"
#include "loadtest/load_test.h"
#include "loadtest/options.h"
#include "loadtest/report.h"

namespace {

enum ExitCode { kExitOk = 0, kExitViolation = 1, kExitUsage = 2, kExitImpossible = 3 };

int Fail(const absl::Status& status, ExitCode code) {
  std::cerr << "folio-loadtest: " << folio::client::FormatError(status) << std::endl;
  return code;
}

int Run(const folio::loadtest::Options& options) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  while (std::ssize(channels) < options.connections) {
    auto channel =
        folio::client::OpenChannel({.target = options.server, .credentials = options.credentials});
    if (!channel.ok()) return Fail(channel.status(), kExitImpossible);
    channels.push_back(*std::move(channel));
  }
  const auto result = folio::loadtest::RunLoadTest(channels, options);
  if (!result.ok()) return Fail(result.status(), kExitImpossible);
  const std::string json = folio::loadtest::FormatJson(*result, options);
  if (options.json) {
    std::cout << json << std::endl;
  } else {
    std::cout << folio::loadtest::FormatResult(*result, options) << std::flush;
  }
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    file << json << std::endl;
    file.close();
    if (!file) {
      return Fail(absl::UnknownError("cannot write " + options.output), kExitImpossible);
    }
  }
  return folio::loadtest::AllViolations(*result).empty() ? kExitOk : kExitViolation;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Puts load on a Folio server and checks its answers: a fixed number of requests at a time, "
      "or with "
      "--rate arrivals that do not wait for answers.",
      "folio-loadtest");
  folio::loadtest::Options options;
  folio::loadtest::AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help is an "error" too, with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "folio-loadtest: " << error.what() << " (see --help)" << std::endl;
    return kExitUsage;
  }
  const absl::Status status = folio::loadtest::FinishOptions(&options);
  return status.ok() ? Run(options) : Fail(status, kExitUsage);
}

}  // namespace

int main(int argc, char** argv) {
  folio::client::LeaveOutGrpcLog();
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {  // of the libraries that read the command line and write
    std::cerr << "folio-loadtest: " << error.what() << std::endl;
    return kExitImpossible;
  }
}
