#include "client/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "client/cli/command.h"
#include "client/cli/json_lines.h"
#include "client/credential_flags.h"
#include "client/status.h"

namespace folio::cli {
namespace {

constexpr char kFooter[] = R"(Exit codes:
  0  success                      5  server unreachable or not ready
  1  other failure                6  server full
  2  wrong command line or field  7  --timeout is over
  3  local file                   8  state of a document forbids it
  4  no such document           130  interrupted
JSON: --json writes one object per line to stdout. Messages of the server are in the JSON
mapping of Protocol Buffers (64-bit integers are strings); an error is the last line.)";

}  // namespace

ExitCode RunCli(const std::vector<std::string>& arguments, Console& console,
                const client::CancelToken& cancel) {
  CLI::App app("Asks a Folio server questions about long documents.", "folio");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  Invocation invocation{.console = console, .server = "localhost:50051", .cancel = cancel};
  app.add_option("--server", invocation.server, "host:port of the server")
      ->envname("FOLIO_SERVER")
      ->capture_default_str();
  client::AddCredentialFlags(&app, &invocation.credentials);
  app.add_flag("--json", invocation.json, "Write JSON lines to stdout, nothing else");
  const std::vector<Command> commands = {
      AddUploadCommand(app),   AddAskCommand(app),        AddDocsCommand(app),
      AddInfoCommand(app),     AddStrategiesCommand(app), AddScoreCommand(app),
      AddPlanCommand(app),     AddTokenizeCommand(app),   AddEvalCommand(app),
      AddEstimateCommand(app), AddRequestsCommand(app),   AddCancelCommand(app)};

  // CLI11 reads its arguments from the back.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    // Help is an "error" too, with exit code 0.
    if (error.get_exit_code() == 0) {
      app.exit(error, console.out, console.err);
      return kExitOk;
    }
    console.err << "folio: " << error.what() << " (see --help)" << std::endl;
    return kExitUsage;
  }

  absl::Status status = absl::InternalError("no command");
  for (const Command& command : commands) {
    if (command.app->parsed()) status = command.run(invocation);
  }
  console.out.flush();
  if (status.ok()) return kExitOk;
  console.err << "folio: " << client::FormatError(status) << std::endl;
  if (invocation.json) WriteErrorLine(console.out, status);
  return cancel.stop_requested() ? kExitInterrupted : ExitCodeOf(status);
}

}  // namespace folio::cli
