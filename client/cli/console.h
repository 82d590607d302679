// The streams of the process, replaceable in tests.
#pragma once

#include <iosfwd>

namespace folio::cli {

// Owned by main() or by a test; used by one thread.
struct Console {
  std::istream& in;
  // Answers and JSON, nothing else.
  std::ostream& out;
  // Progress, summaries and errors.
  std::ostream& err;
  // Progress is drawn only on a terminal.
  bool err_is_terminal = false;
  // Characters in one line of that terminal.
  int columns = 80;
};

}  // namespace folio::cli
