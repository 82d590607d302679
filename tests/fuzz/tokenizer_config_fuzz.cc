// Any bytes as tokenizer_config.json.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/tokenizer/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)folio::ParseTokenizerConfig("tokenizer_config.json",
                                    std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
