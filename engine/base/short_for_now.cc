#include "engine/base/short_for_now.h"

#include "absl/strings/cord.h"

namespace folio {
namespace {

// Its presence says it; it has no content.
constexpr char kForNowPayload[] = "folio/for-now";

}  // namespace

absl::Status ShortForNow(const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kForNowPayload, absl::Cord());
  return status;
}

bool IsShortForNow(const absl::Status& status) {
  return status.GetPayload(kForNowPayload).has_value();
}

}  // namespace folio
