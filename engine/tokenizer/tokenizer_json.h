#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace folio {

// What a Hugging Face tokenizer.json of the byte-level BPE kind says.
struct TokenizerJson {
  struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool special = false;     // never found in a text here, as it stands for none
    bool normalized = false;  // looked for after normalisation, else before
  };
  std::vector<std::pair<std::string, int32_t>> vocab;  // as written, a character per byte
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<std::string> patterns;  // of the words, one after the other
  std::vector<AddedToken> added;
  int32_t bos_id = -1;  // what the template puts in front of a text
};

// Reads the kinds that GPT-2, GPT-J, GPT-NeoX, MPT, Qwen2 and Llama 3 use. `what` names the text in
// messages. Errors: INVALID_ARGUMENT naming the field; UNIMPLEMENTED for another kind of model,
// normalizer, pre-tokenizer or template.
absl::StatusOr<TokenizerJson> ParseTokenizerJson(const std::string& what, std::string_view text);

// The pattern of GPT-2, which the ByteLevel pre-tokenizer stands for.
extern const char kGpt2Pattern[];

}  // namespace folio
