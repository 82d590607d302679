#include "engine/tokenizer/tokenizer_config.h"

#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"

namespace folio {
namespace {

constexpr size_t kMaxFileBytes = 256 << 20;

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

// {"32000": {"content": ..., "special": ...}, ...}
absl::StatusOr<std::vector<SpecialToken>> ReadAddedTokens(const Json& json) {
  std::vector<SpecialToken> tokens;
  const Json* added = Find(json, "added_tokens_decoder");
  if (added == nullptr) return tokens;
  if (!added->is_object()) return Bad("added_tokens_decoder", *added, "an object");
  for (const auto& [key, token] : added->items()) {
    SpecialToken out;
    if (!absl::SimpleAtoi(key, &out.id) || out.id < 0 || !token.is_object()) {
      return Bad("added_tokens_decoder", *added, "token ids with an object each");
    }
    FOLIO_ASSIGN_OR_RETURN(out.name, OptionalString(token, "content", ""));
    FOLIO_ASSIGN_OR_RETURN(out.strips_left, OptionalBool(token, "lstrip"));
    FOLIO_ASSIGN_OR_RETURN(out.strips_right, OptionalBool(token, "rstrip"));
    FOLIO_ASSIGN_OR_RETURN(const bool special, OptionalBool(token, "special"));
    if (out.name.empty()) return Bad("added_tokens_decoder", token, "with a content");
    if (special) tokens.push_back(std::move(out));
  }
  return tokens;
}

// A template, or a list of named ones.
absl::StatusOr<std::optional<std::string>> ReadTemplate(const Json& json) {
  const Json* found = Find(json, "chat_template");
  if (found == nullptr) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return Bad("chat_template", *found, "a template, or a list of them");
  for (const Json& entry : *found) {
    if (!entry.is_object()) return Bad("chat_template", entry, "an object with name and template");
    FOLIO_ASSIGN_OR_RETURN(const std::string name, OptionalString(entry, "name", ""));
    if (name != "default") continue;
    FOLIO_ASSIGN_OR_RETURN(std::string text, OptionalString(entry, "template", ""));
    return text;
  }
  return std::nullopt;
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
  FOLIO_ASSIGN_OR_RETURN(config.legacy, OptionalBool(json, "legacy", true));
  FOLIO_ASSIGN_OR_RETURN(config.special_tokens, ReadAddedTokens(json));
  FOLIO_ASSIGN_OR_RETURN(config.chat_template, ReadTemplate(json));
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

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir) {
  const std::filesystem::path dir(model_dir);
  TokenizerConfig config;
  const std::string path = (dir / "tokenizer_config.json").string();
  const auto text = ReadSmallFile(path, kMaxFileBytes);
  if (text.ok()) {
    FOLIO_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(path, *text));
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  auto chat_template = ReadSmallFile((dir / "chat_template.jinja").string(), kMaxFileBytes);
  if (chat_template.ok()) {
    config.chat_template = *std::move(chat_template);
  } else if (!absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  return config;
}

}  // namespace folio
