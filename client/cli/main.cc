// The command line tool `folio`.
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "client/channel.h"
#include "client/cli/cli.h"
#include "client/cli/interrupt.h"

int main(int argc, char** argv) {
  folio::client::LeaveOutGrpcLog();
  const folio::cli::InterruptWatcher interrupt;
  folio::cli::Console console{.in = std::cin, .out = std::cout, .err = std::cerr};
  console.err_is_terminal = isatty(STDERR_FILENO) == 1;
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    console.columns = size.ws_col;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return folio::cli::RunCli(arguments, console, interrupt.token());
}
