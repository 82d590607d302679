// Any UTF-8 text: encoded and decoded it is itself, and streamed it has the same tokens. By BPE
// over bytes and over characters.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/base/input_file.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/metaspace_tokenizer.h"
#include "engine/tokenizer/piece.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace {

folio::TokenizerJson Read(const std::string& kind) {
  const std::string path = FOLIO_BPE_DIR "/" + kind + "/tokenizer.json";
  const auto text = folio::ReadSmallFile(path, 1 << 20);
  if (!text.ok()) abort();
  return folio::ParseTokenizerJson(path, *text).value();
}

// `expected`: what a text is once it was encoded and decoded.
void Check(const folio::Tokenizer& tokenizer, std::string_view text, std::string_view expected) {
  const auto ids = tokenizer.Encode(text);
  if (ids.ok() != folio::IsValidUtf8(text)) abort();
  if (!ids.ok()) return;
  if (*tokenizer.Decode(*ids) != expected) abort();
  folio::StreamingTokenizer stream(tokenizer);
  std::vector<int32_t> streamed;
  if (!stream.Add(text, &streamed).ok() || !stream.Finish(&streamed).ok()) abort();
  if (streamed != *ids) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto bytes = *folio::BpeTokenizer::Create("gpt2", Read("gpt2"), {}, 1000);
  static const auto characters =
      *folio::MetaspaceTokenizer::Create("llama2", Read("llama2"), {}, 1000);
  const std::string text(reinterpret_cast<const char*>(data), size);
  Check(*bytes, text, text);
  Check(*characters, text, absl::StrReplaceAll(text, {{folio::kSpaceSymbol.data(), " "}}));
  return 0;
}
