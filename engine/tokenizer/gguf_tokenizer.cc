#include "engine/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/spm_model_writer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kTypes[] = "tokenizer.ggml.token_type";
constexpr char kScores[] = "tokenizer.ggml.scores";
constexpr char kMerges[] = "tokenizer.ggml.merges";
constexpr char kPre[] = "tokenizer.ggml.pre";

// Types of tokens that are not text like any other; those of SentencePiece.
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kUnused = 5;
constexpr int kByte = 6;

// A pre-tokenizer of a tokenizer.json by its name in GGUF files.
struct PreTokenizer {
  const char* name;
  const char* pattern;  // null: GPT-2's, which belongs to ByteLevel
  bool nfc;
  bool ignore_merges;
  bool adds_bos;  // where the file does not say
};
constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2", nullptr, false, false, false},
    {"qwen2", kQwen2Pattern, true, false, false},
    {"llama-bpe", kLlama3Pattern, false, true, true},
};

absl::StatusOr<const Json*> List(const Json& metadata, const char* key) {
  const Json* list = Find(metadata, key);
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing or no list"));
  }
  return list;
}

absl::StatusOr<std::string> Utf8(const std::string& what, const Json& value) {
  if (value.is_string() && IsValidUtf8(value.get_ref<const std::string&>())) {
    return value.get<std::string>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", what, "\" is ", Shown(value), ", expected a text of UTF-8"));
}

struct Token {
  std::string text;
  int type = 1;
  float score = 0;
};

class Reader {
 public:
  explicit Reader(const Json& metadata) : from_(metadata) {}

  absl::StatusOr<TokenizerFiles> Read();

 private:
  absl::Status ReadTokens();
  absl::Status ReadScores();
  // Of the list of tokens; nullopt where the file has no such key.
  absl::StatusOr<std::optional<int>> Id(const char* key) const;
  absl::StatusOr<std::string> SpmModel() const;
  absl::StatusOr<std::string> BpeJson() const;
  absl::StatusOr<std::string> ConfigJson() const;

  const Json& from_;
  std::vector<Token> tokens_;
};

absl::Status Reader::ReadTokens() {
  FOLIO_ASSIGN_OR_RETURN(const Json* texts, List(from_, kTokens));
  FOLIO_ASSIGN_OR_RETURN(const Json* types, List(from_, kTypes));
  if (types->size() != texts->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", kTypes, "\" has ", types->size(), " entries, \"", kTokens, "\" has ", texts->size()));
  }
  for (size_t i = 0; i < texts->size(); ++i) {
    Token token;
    FOLIO_ASSIGN_OR_RETURN(token.text, Utf8(kTokens, (*texts)[i]));
    FOLIO_ASSIGN_OR_RETURN(token.type, ReadInt((*types)[i], kTypes, {1, kByte}));
    tokens_.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadScores() {
  FOLIO_ASSIGN_OR_RETURN(const Json* scores, List(from_, kScores));
  if (scores->size() != tokens_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", kScores, "\" has ", scores->size(),
                                                   " entries, \"", kTokens, "\" has ",
                                                   tokens_.size()));
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (!(*scores)[i].is_number()) return Bad(kScores, (*scores)[i], "a number");
    tokens_[i].score = (*scores)[i].get<float>();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int>> Reader::Id(const char* key) const {
  if (Find(from_, key) == nullptr) return std::optional<int>();
  const IntRange ids = {0, static_cast<int>(tokens_.size()) - 1};
  FOLIO_ASSIGN_OR_RETURN(const int id, RequiredInt(from_, key, ids));
  return std::optional<int>(id);
}

absl::StatusOr<std::string> Reader::SpmModel() const {
  if (const Json* rules = Find(from_, "tokenizer.ggml.precompiled_charsmap"); rules != nullptr) {
    return absl::UnimplementedError(
        "\"tokenizer.ggml.precompiled_charsmap\" is given; known: tokenizers that do not rewrite "
        "text");
  }
  SpmModelWriter writer;
  FOLIO_ASSIGN_OR_RETURN(writer.add_dummy_prefix,
                         OptionalBool(from_, "tokenizer.ggml.add_space_prefix", true));
  FOLIO_ASSIGN_OR_RETURN(writer.remove_extra_whitespaces,
                         OptionalBool(from_, "tokenizer.ggml.remove_extra_whitespaces"));
  FOLIO_ASSIGN_OR_RETURN(const bool adds_bos,
                         OptionalBool(from_, "tokenizer.ggml.add_bos_token", true));
  FOLIO_ASSIGN_OR_RETURN(const std::optional<int> bos, Id("tokenizer.ggml.bos_token_id"));
  FOLIO_ASSIGN_OR_RETURN(const std::optional<int> eos, Id("tokenizer.ggml.eos_token_id"));
  if (adds_bos && bos) writer.bos_piece = tokens_[*bos].text;
  if (eos) writer.eos_piece = tokens_[*eos].text;
  for (const Token& token : tokens_) {
    if (token.type == kByte) writer.byte_fallback = true;
    writer.Add(token.text, token.score, token.type);
  }
  return writer.Finish();
}

absl::StatusOr<const PreTokenizer*> FindPre(const Json& metadata) {
  FOLIO_ASSIGN_OR_RETURN(const std::string name, OptionalString(metadata, kPre, ""));
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (name == pre.name) return &pre;
  }
  return absl::UnimplementedError(absl::StrCat("\"", kPre, "\" is ", Shown(name),
                                               "; known: gpt-2, qwen2, llama-bpe. Other models are "
                                               "read as Hugging Face directories"));
}

absl::StatusOr<std::string> Reader::BpeJson() const {
  FOLIO_ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPre(from_));
  FOLIO_ASSIGN_OR_RETURN(const Json* merges, List(from_, kMerges));
  Json json = {{"model", {{"type", "BPE"}, {"ignore_merges", pre->ignore_merges}}}};
  if (pre->nfc) json["normalizer"] = {{"type", "NFC"}};
  Json steps = Json::array();
  const bool own_pattern = pre->pattern != nullptr;
  if (own_pattern) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pre->pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", !own_pattern}});
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  Json& vocab = json["model"]["vocab"] = Json::object();
  Json& added = json["added_tokens"] = Json::array();
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const auto& [text, type, score] = tokens_[id];
    if (type == kControl || type == kUserDefined) {
      added.push_back(
          {{"id", id}, {"content", text}, {"special", type == kControl}, {"normalized", false}});
    } else if (type != kUnused) {
      vocab.emplace(text, id);
    }
  }
  Json& pairs = json["model"]["merges"] = Json::array();
  for (const Json& merge : *merges) {
    FOLIO_ASSIGN_OR_RETURN(std::string pair, Utf8(kMerges, merge));
    pairs.push_back(std::move(pair));
  }
  FOLIO_ASSIGN_OR_RETURN(const bool adds_bos,
                         OptionalBool(from_, "tokenizer.ggml.add_bos_token", pre->adds_bos));
  FOLIO_ASSIGN_OR_RETURN(const std::optional<int> bos, Id("tokenizer.ggml.bos_token_id"));
  if (adds_bos && bos) {
    const std::string& text = tokens_[*bos].text;
    json["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         Json::array({Json{{"SpecialToken", {{"id", text}}}}, Json{{"Sequence", {{"id", "A"}}}}})},
        {"special_tokens", Json{{text, {{"id", text}, {"ids", Json::array({*bos})}}}}}};
  }
  return json.dump();
}

absl::StatusOr<std::string> Reader::ConfigJson() const {
  Json json = Json::object();
  constexpr std::pair<const char*, const char*> kEnds[] = {
      {"tokenizer.ggml.bos_token_id", "bos_token"}, {"tokenizer.ggml.eos_token_id", "eos_token"}};
  for (const auto& [key, to] : kEnds) {
    FOLIO_ASSIGN_OR_RETURN(const std::optional<int> id, Id(key));
    if (id) json[to] = tokens_[*id].text;
  }
  if (const Json* chat = Find(from_, "tokenizer.chat_template"); chat != nullptr) {
    FOLIO_ASSIGN_OR_RETURN(json["chat_template"], Utf8("tokenizer.chat_template", *chat));
  }
  return json.dump();
}

absl::StatusOr<TokenizerFiles> Reader::Read() {
  FOLIO_ASSIGN_OR_RETURN(const std::string kind, OptionalString(from_, "tokenizer.ggml.model", ""));
  if (kind != "llama" && kind != "gpt2") {
    return absl::UnimplementedError(absl::StrCat("\"tokenizer.ggml.model\" is ", Shown(kind),
                                                 "; known: llama and gpt2. Other models are read "
                                                 "as Hugging Face directories"));
  }
  FOLIO_RETURN_IF_ERROR(ReadTokens());
  TokenizerFiles files;
  if (kind == "llama") {
    FOLIO_RETURN_IF_ERROR(ReadScores());
    FOLIO_ASSIGN_OR_RETURN(files["tokenizer.model"], SpmModel());
  } else {
    FOLIO_ASSIGN_OR_RETURN(files["tokenizer.json"], BpeJson());
  }
  FOLIO_ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigJson());
  return files;
}

}  // namespace

absl::StatusOr<TokenizerFiles> GgufTokenizerFiles(const GgufFile& file) {
  absl::StatusOr<TokenizerFiles> files = Reader(file.metadata()).Read();
  if (files.ok()) return files;
  return absl::Status(files.status().code(),
                      absl::StrCat(file.path(), ": ", files.status().message()));
}

}  // namespace folio
