// Any bytes as config.json.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config =
      folio::ParseModelConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) return 0;
  // What every accepted configuration promises.
  const folio::ModelShape& shape = config->shape;
  if (shape.num_heads % shape.num_kv_heads != 0 || shape.head_dim % 2 != 0) abort();
  for (const folio::TensorSpec& spec : folio::ModelTensors(*config)) {
    int64_t num_elements = 1;
    for (const int64_t dim : spec.shape) {
      if (dim <= 0 || __builtin_mul_overflow(num_elements, dim, &num_elements)) abort();
    }
  }
  return 0;
}
