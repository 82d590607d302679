#include "engine/runtime/shortage.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "engine/base/short_for_now.h"
#include "engine/runtime/admission.h"
#include "engine/types/request.h"

namespace folio {

absl::Status NoRoomInCache(const KvShortage& shortage, const AttentionModel& model) {
  const std::string message = absl::StrCat(
      shortage.who, " needs ", shortage.needed_bytes, " bytes of KV cache, documents keep ",
      shortage.kept_bytes, " of ", shortage.capacity_bytes, ": ");
  if (shortage.needed_bytes + shortage.kept_bytes <= shortage.capacity_bytes) {
    return ShortForNow(message + "try again when other requests have ended");
  }
  return absl::ResourceExhaustedError(message + "delete documents, " + MemoryAdvice(model));
}

absl::Status LimitReached(const char* limit, LimitOf of, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kLimitPayload,
                    absl::Cord(absl::StrCat(of == LimitOf::kTenant ? kTenantLimit : "", limit)));
  return status;
}

bool IsLimitOfTenant(const absl::Status& status) {
  const auto limit = status.GetPayload(kLimitPayload);
  return limit.has_value() && limit->StartsWith(kTenantLimit);
}

absl::Status NoRoomForTenant(const KvShortage& shortage, int64_t most_bytes) {
  return LimitReached(kKvBytes, LimitOf::kTenant,
                      absl::StrCat(shortage.who, " needs ", shortage.needed_bytes,
                                   " bytes of KV cache, documents and streams of its tenant keep ",
                                   shortage.kept_bytes, " of the ", most_bytes,
                                   " that it may have: delete documents"));
}

}  // namespace folio
