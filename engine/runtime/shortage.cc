#include "engine/runtime/shortage.h"

#include "absl/strings/str_cat.h"
#include "engine/base/short_for_now.h"
#include "engine/runtime/admission.h"

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

}  // namespace folio
