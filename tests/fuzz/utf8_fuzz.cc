// Any bytes through the UTF-8 helpers, which must agree with each other.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  size_t valid_bytes = 0;
  while (valid_bytes < size) {
    const folio::Utf8Step step = folio::NextUtf8(text.substr(valid_bytes));
    if (step.num_bytes == 0 || step.num_bytes > size - valid_bytes) abort();
    if (step.state != folio::Utf8State::kCharacter) break;
    valid_bytes += step.num_bytes;
  }
  if (folio::ValidUtf8Prefix(text) != valid_bytes) abort();
  if (folio::IsValidUtf8(text) != (valid_bytes == size)) abort();
  if (folio::IncompleteUtf8Tail(text) > 3) abort();
  return 0;
}
