// Any bytes as adapter_config.json.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/adapter_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = folio::ParseAdapterConfig(
      "adapter_config.json", std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) return 0;
  // What every accepted configuration promises.
  const auto numbers = config->NumbersOf("model.layers.0.self_attn.q_proj");
  if (!numbers.ok()) return 0;
  if (numbers->rank < 1 || numbers->rank > folio::kMaxAdapterRank) abort();
  if (!std::isfinite(numbers->scale) || numbers->scale < 0) abort();
  return 0;
}
