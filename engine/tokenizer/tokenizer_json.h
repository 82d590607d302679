#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace folio {

// Of BPE over characters: kSpaceSymbol stands for a space, tokens of bytes for characters that
// are no tokens.
struct MetaspaceRules {
  // Before which text a space is put.
  enum class Prefix : uint8_t { kNever, kFirst, kAlways };  // kAlways: after a special token, too
  Prefix prefix = Prefix::kNever;
  bool only_if_missing = false;

  bool operator==(const MetaspaceRules&) const = default;
};

// What a Hugging Face tokenizer.json says whose model is BPE, over bytes or over characters.
struct TokenizerJson {
  struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool special = false;     // never found in a text here, as it stands for none
    bool normalized = false;  // looked for after normalisation, else before
    // Of special ones: takes spaces and line ends beside it with it.
    bool strips_left = false;
    bool strips_right = false;
  };
  using Metaspace = MetaspaceRules;
  std::optional<Metaspace> metaspace;  // nullopt: over bytes

  std::vector<std::pair<std::string, int32_t>> vocab;  // as written; over bytes a character each
  std::vector<std::pair<std::string, std::string>> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<std::string> patterns;  // of the words, one after the other
  std::vector<AddedToken> added;
  int32_t bos_id = -1;  // what the template puts in front of a text
};

// Reads the kinds that GPT-2, GPT-J, GPT-NeoX, MPT, Qwen2 and Llama 3 use, and those of Llama 2,
// Mistral, Phi-3 and Gemma. `what` names the text in
// messages. Errors: INVALID_ARGUMENT naming the field; UNIMPLEMENTED for another kind of model,
// normalizer, pre-tokenizer or template.
absl::StatusOr<TokenizerJson> ParseTokenizerJson(const std::string& what, std::string_view text);

// The pattern of GPT-2, which the ByteLevel pre-tokenizer stands for.
extern const char kGpt2Pattern[];
// Those of Qwen2 and Llama 3, which their files write out.
extern const char kQwen2Pattern[];
extern const char kLlama3Pattern[];

}  // namespace folio
