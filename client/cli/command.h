// What every command of the tool is made of.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cancel_token.h"
#include "client/cli/console.h"
#include "client/client.h"

namespace folio::cli {

// One run of the tool. Used by one thread.
struct Invocation {
  Console& console;
  std::string server;
  // NDJSON on stdout instead of text.
  bool json = false;
  client::CancelToken cancel;
  client::Credentials credentials = {};

  absl::StatusOr<std::unique_ptr<client::Client>> Connect() const {
    return client::Client::Connect(
        {.target = server, .cancel = cancel, .credentials = credentials});
  }
};

// A subcommand and what to do when it was given. A failed status becomes the one line on stderr and
// the exit code.
struct Command {
  CLI::App* app;
  std::function<absl::Status(Invocation&)> run;
};

Command AddAskCommand(CLI::App& root);
Command AddCancelCommand(CLI::App& root);
Command AddDocsCommand(CLI::App& root);
Command AddEstimateCommand(CLI::App& root);
Command AddEvalCommand(CLI::App& root);
Command AddInfoCommand(CLI::App& root);
Command AddPlanCommand(CLI::App& root);
Command AddRequestsCommand(CLI::App& root);
Command AddScoreCommand(CLI::App& root);
Command AddStrategiesCommand(CLI::App& root);
Command AddTokenizeCommand(CLI::App& root);
Command AddUploadCommand(CLI::App& root);

}  // namespace folio::cli
