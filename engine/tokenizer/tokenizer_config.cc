#include "engine/tokenizer/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"

namespace folio {
namespace {

// Defaults of a class of transformers. Those that add the beginning themselves, or leave it out,
// replace the template of tokenizer.json.
struct TokenizerClass {
  std::string_view name;
  const char* bos_token;
  const char* eos_token;
  std::optional<bool> adds_bos;
};
constexpr TokenizerClass kClasses[] = {
    {"LlamaTokenizer", "<s>", "</s>", true},
    {"GPTNeoXTokenizer", "<|endoftext|>", "<|endoftext|>", false},
    {"GPT2Tokenizer", "<|endoftext|>", "<|endoftext|>", std::nullopt},
    {"Qwen2Tokenizer", "", "<|endoftext|>", std::nullopt},
};
constexpr TokenizerClass kAnyOther = {"", "", "", std::nullopt};

const TokenizerClass& ClassOf(std::string_view name) {
  constexpr std::string_view kFast = "Fast";
  if (name.ends_with(kFast)) name.remove_suffix(kFast.size());
  for (const TokenizerClass& known : kClasses) {
    if (known.name == name) return known;
  }
  return kAnyOther;
}

// A string, or an object with its content. Null is none, other than no key.
absl::StatusOr<std::string> ReadToken(const Json& json, const char* key,
                                      const std::string& otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  if (found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  const Json* content = found->is_object() ? Find(*found, "content") : nullptr;
  if (content == nullptr || !content->is_string()) {
    return Bad(key, *found, "a token, or an object with its content");
  }
  return content->get<std::string>();
}

absl::StatusOr<TokenizerConfig> Read(const Json& json) {
  FOLIO_ASSIGN_OR_RETURN(const std::string name, OptionalString(json, "tokenizer_class", ""));
  const TokenizerClass& defaults = ClassOf(name);
  TokenizerConfig config;
  FOLIO_ASSIGN_OR_RETURN(config.bos_token, ReadToken(json, "bos_token", defaults.bos_token));
  FOLIO_ASSIGN_OR_RETURN(config.eos_token, ReadToken(json, "eos_token", defaults.eos_token));
  if (defaults.adds_bos.has_value()) {
    FOLIO_ASSIGN_OR_RETURN(config.adds_bos,
                           OptionalBool(json, "add_bos_token", *defaults.adds_bos));
  }
  return config;
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& what,
                                                     std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(what, text));
  absl::StatusOr<TokenizerConfig> config = Read(json);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(what, ": ", config.status().message()));
}

}  // namespace folio
