// Any bytes as tokenizer.json; the patterns of what is accepted cut a text.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/tokenizer/text_splitter.h"
#include "engine/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = folio::ParseTokenizerJson(
      "tokenizer.json", std::string_view(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) return 0;
  const auto splitter = folio::TextSplitter::Create(file->patterns);
  if (!splitter.ok()) return 0;
  constexpr std::string_view kText = "It's 1234 words,\n  \u00e9t\u00e9 \u6587\u5b57  end ";
  std::string joined;
  const auto status = splitter->Split(kText, [&](std::string_view word) {
    joined += word;
    return absl::OkStatus();
  });
  if (status.ok() && joined != kText) abort();
  return 0;
}
