#include "engine/base/catch_errors.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/base/short_for_now.h"

namespace folio {
namespace {

// Never destroyed: threads may fail while the process ends.
const absl::Status& out_of_memory =
    *new absl::Status(ShortForNow("the server is out of host memory; try again later"));

absl::Status Unexpected(const std::exception& error) noexcept {
  try {
    return absl::InternalError(absl::StrCat("an unexpected error: ", error.what()));
  } catch (const std::exception&) {
    return absl::Status(absl::StatusCode::kInternal, "");
  }
}

}  // namespace

const absl::Status& OutOfMemory() { return out_of_memory; }

absl::Status CatchErrors(absl::FunctionRef<void()> work) noexcept {
  return StatusOf([work] {
    work();
    return absl::OkStatus();
  });
}

absl::Status StatusOf(absl::FunctionRef<absl::Status()> work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& error) {
    return Unexpected(error);
  }
}

}  // namespace folio
