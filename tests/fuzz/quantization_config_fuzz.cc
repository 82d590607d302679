// Any bytes as the text of a config.json with a quantization_config.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = folio::ParseQuantization({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) return 0;
  // Sizes that matrices are divided by: both of a block, or none.
  const bool block = config->block_rows > 0;
  if (config->group < 0 || config->block_rows < 0 || block != (config->block_columns > 0)) abort();
  return 0;
}
