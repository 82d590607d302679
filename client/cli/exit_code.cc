#include "client/cli/exit_code.h"

#include "absl/strings/cord.h"

namespace folio::cli {
namespace {

constexpr char kFileErrorUrl[] = "folio.cli/file_error";

}  // namespace

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.GetPayload(kFileErrorUrl).has_value()) return kExitFile;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return kExitFull;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return kExitState;
    default:
      return kExitFailure;
  }
}

absl::Status AsFileError(const absl::Status& status) {
  absl::Status marked = status;
  if (!marked.ok()) marked.SetPayload(kFileErrorUrl, absl::Cord());
  return marked;
}

}  // namespace folio::cli
