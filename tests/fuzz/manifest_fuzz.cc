// Any bytes as the manifest of a stored document, as they are and with a checksum that is right.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "engine/base/checksum.h"
#include "engine/store/manifest.h"

namespace {

constexpr size_t kVersionAt = 8;

// What is taken has one encoding: of the present version these bytes.
void Check(const std::string& bytes) {
  const auto manifest = folio::DecodeManifest(bytes);
  if (!manifest.ok()) return;
  const auto again = folio::EncodeManifest(*manifest);
  if (!again.ok() || manifest->data_bytes() < 0) abort();
  if (*folio::DecodeManifest(*again) != *manifest) abort();
  if (bytes[kVersionAt] == folio::kManifestVersion && *again != bytes) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  if (size < 24) return 0;
  const auto length = static_cast<uint32_t>(size);
  std::memcpy(bytes.data() + 12, &length, sizeof(length));
  const uint64_t checksum =
      folio::Checksum(std::as_bytes(std::span(bytes.data(), size - sizeof(uint64_t))));
  std::memcpy(bytes.data() + size - sizeof(checksum), &checksum, sizeof(checksum));
  Check(bytes);
  return 0;
}
