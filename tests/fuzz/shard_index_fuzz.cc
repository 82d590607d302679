// Any bytes as model.safetensors.index.json.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index =
      folio::ParseShardIndex(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!index.ok()) return 0;
  for (const auto& [tensor, file] : *index) {
    if (file.empty() || file.find('/') != std::string::npos || file[0] == '.') abort();
  }
  return 0;
}
