// Any chat template, and any text in a conversation of its format: recognised or not, and no text
// becomes a special token.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/chat/chat_prompt.h"
#include "engine/tokenizer/byte_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const folio::ByteTokenizer tokenizer(300);
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto format = folio::RecogniseChatTemplate(text);
  const folio::Chat chat(format.value_or(*folio::FindChatFormat("llama2")), "<s>", "</s>",
                         tokenizer);
  const auto specials = [&](const std::string& said) {
    const auto ids = chat.Encode(said, {{{said, said}}}, said, tokenizer);
    if (!ids.ok()) return int64_t{-1};
    return std::count_if(ids->begin(), ids->end(), [](int32_t id) { return id == 1 || id == 2; });
  };
  const int64_t found = specials(text);
  if (found >= 0 && found != specials(std::string(size, 'x'))) abort();
  return 0;
}
