// Any bytes as a safetensors header. The first two bytes give the size of the data.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/safetensors_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t data_bytes = data[0] + 256u * data[1];
  const std::string_view header(reinterpret_cast<const char*>(data + 2), size - 2);
  const auto entries = folio::ParseSafetensorsHeader(header, data_bytes);
  if (!entries.ok()) return 0;
  // What every accepted header promises.
  uint64_t total_bytes = 0;
  for (const auto& [name, entry] : *entries) {
    if (entry.begin > entry.end || entry.end > data_bytes) abort();
    total_bytes += entry.end - entry.begin;
  }
  if (total_bytes != data_bytes) abort();
  return 0;
}
