// Exit codes of the command line tool.
#pragma once

#include "absl/status/status.h"

namespace folio::cli {

enum ExitCode {
  kExitOk = 0,
  // Anything that has no code of its own, faults of the server included.
  kExitFailure = 1,
  // Wrong command line, or a field that the server refuses (INVALID_ARGUMENT).
  kExitUsage = 2,
  // A local file cannot be read or written.
  kExitFile = 3,
  // The server has no such document (NOT_FOUND).
  kExitNotFound = 4,
  // The server cannot be reached or is not ready (UNAVAILABLE).
  kExitUnavailable = 5,
  // The server is full (RESOURCE_EXHAUSTED).
  kExitFull = 6,
  // --timeout is over (DEADLINE_EXCEEDED).
  kExitDeadline = 7,
  // The state of a document or of the server forbids it (FAILED_PRECONDITION, ALREADY_EXISTS).
  kExitState = 8,
  // Ctrl-C.
  kExitInterrupted = 130,
};

ExitCode ExitCodeOf(const absl::Status& status);

// Marks an error as one of a local file, which has an exit code of its own.
absl::Status AsFileError(const absl::Status& status);

}  // namespace folio::cli
