// The command line tool without its process: arguments in, exit code out.
#pragma once

#include <string>
#include <vector>

#include "client/cancel_token.h"
#include "client/cli/console.h"
#include "client/cli/exit_code.h"

namespace folio::cli {

// Runs `folio` with these arguments (the program name not among them). Errors become one line on
// console.err, and with --json also {"error": ...} as the last line of console.out.
ExitCode RunCli(const std::vector<std::string>& arguments, Console& console,
                const client::CancelToken& cancel);

}  // namespace folio::cli
