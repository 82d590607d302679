#include "engine/store/content_key.h"

#include "absl/strings/escaping.h"
#include "engine/store/sha256.h"

namespace folio {

std::string HexOf(const ContentKey& key) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(key.data()), key.size()});
}

ContentKey FirstKey(const Fingerprint& model, std::string_view attention, std::string_view salt) {
  Sha256 hash("folio rendition 1");
  hash.Add(model);
  hash.Add(attention);
  hash.Add(salt);
  return hash.Finish();
}

ContentKey NextKey(const ContentKey& previous, std::span<const int32_t> token_ids) {
  Sha256 hash("folio segment 1");
  hash.Add(previous);
  hash.Add(std::string_view(reinterpret_cast<const char*>(token_ids.data()),
                            token_ids.size() * sizeof(int32_t)));
  return hash.Finish();
}

}  // namespace folio
