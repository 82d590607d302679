// Any UTF-8 text: encoded and decoded it is itself, and streamed it has the same tokens.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "engine/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer = folio::OpenTokenizer(FOLIO_BPE_DIR, {}, 1000);
  if (!tokenizer.ok()) abort();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ids = (*tokenizer)->Encode(text);
  if (ids.ok() != folio::IsValidUtf8(text)) abort();
  if (!ids.ok()) return 0;
  if (*(*tokenizer)->Decode(*ids) != text) abort();
  folio::StreamingTokenizer stream(**tokenizer);
  std::vector<int32_t> streamed;
  if (!stream.Add(text, &streamed).ok() || !stream.Finish(&streamed).ok()) abort();
  if (streamed != *ids) abort();
  return 0;
}
