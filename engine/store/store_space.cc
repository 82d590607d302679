#include "engine/store/store_space.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace folio {

absl::Status StoreSpace::Take(int64_t bytes, std::string_view what) {
  const MutexLock lock(&mu_);
  if (bytes <= quota_bytes_ - used_.total()) {
    used_.documents += bytes;
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      std::string(what), " needs ", bytes, " bytes on disk, of ", quota_bytes_, " are taken ",
      used_.documents, " by documents, ", used_.trash, " by the trash and ", used_.quarantine,
      " by the quarantine; delete documents or raise the quota"));
}

void StoreSpace::Add(const StoreBytes& bytes) {
  const MutexLock lock(&mu_);
  used_.documents += bytes.documents;
  used_.trash += bytes.trash;
  used_.quarantine += bytes.quarantine;
}

StoreBytes StoreSpace::used() const {
  const MutexLock lock(&mu_);
  return used_;
}

}  // namespace folio
