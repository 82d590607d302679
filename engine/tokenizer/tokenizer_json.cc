#include "engine/tokenizer/tokenizer_json.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"
#include "engine/tokenizer/piece.h"

namespace folio {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr IntRange kIds = {0, std::numeric_limits<int>::max()};

absl::Status Unknown(const std::string& field, const Json& value, const std::string& known) {
  return absl::UnimplementedError(
      absl::StrCat("\"", field, "\" is ", Shown(value), "; known: ", known));
}

absl::StatusOr<std::string> TypeOf(const Json& object, const char* field) {
  if (!object.is_object()) return Bad(field, object, "an object");
  return OptionalString(object, "type", "");
}

// A field that must be absent, null, false or "".
absl::Status MustBeUnset(const Json& object, const char* key) {
  const Json* value = Find(object, key);
  if (value == nullptr || *value == false || *value == Json(std::string())) return absl::OkStatus();
  return Unknown(absl::StrCat("model.", key), *value, "null");
}

absl::Status ReadVocab(const Json& model, TokenizerJson* file) {
  const Json* vocab = Find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return absl::InvalidArgumentError("\"model.vocab\" is no object");
  }
  file->vocab.reserve(vocab->size());
  for (const auto& [token, id] : vocab->items()) {
    FOLIO_ASSIGN_OR_RETURN(const int number, ReadInt(id, token.c_str(), kIds));
    file->vocab.emplace_back(token, number);
  }
  return absl::OkStatus();
}

// Pairs, or in older files "left right".
absl::Status ReadMerges(const Json& model, TokenizerJson* file) {
  const Json* merges = Find(model, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return absl::InvalidArgumentError("\"model.merges\" is no list");
  }
  file->merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space == std::string::npos) return Bad("model.merges", merge, "two tokens");
      file->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      file->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return Bad("model.merges", merge, "two tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& json, TokenizerJson* file) {
  const Json* model = Find(json, "model");
  if (model == nullptr) return absl::InvalidArgumentError("\"model\" is missing");
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(*model, "model"));
  // Older files leave the type out.
  if (type != "BPE" && !(type.empty() && Find(*model, "merges") != nullptr)) {
    return Unknown("model.type", type, "\"BPE\" (for others give a tokenizer.model)");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    FOLIO_RETURN_IF_ERROR(MustBeUnset(*model, key));
  }
  // BPE over bytes knows every character.
  FOLIO_ASSIGN_OR_RETURN(const bool over_characters, OptionalBool(*model, "byte_fallback"));
  if (over_characters) {
    FOLIO_RETURN_IF_ERROR(MustBeUnset(*model, "ignore_merges"));
    file->metaspace.emplace();
  } else {
    FOLIO_RETURN_IF_ERROR(MustBeUnset(*model, "fuse_unk"));
  }
  FOLIO_ASSIGN_OR_RETURN(file->ignore_merges, OptionalBool(*model, "ignore_merges"));
  FOLIO_RETURN_IF_ERROR(ReadVocab(*model, file));
  return ReadMerges(*model, file);
}

// {"String": text}
bool IsPattern(const Json& object, std::string_view text) {
  const Json* pattern = Find(object, "pattern");
  if (pattern == nullptr || !pattern->is_object()) return false;
  const Json* string = Find(*pattern, "String");
  return string != nullptr && *string == Json(std::string(text));
}

bool Is(const Json& object, const char* key, std::string_view text) {
  const Json* value = Find(object, key);
  return value != nullptr && *value == Json(std::string(text));
}

// Of BPE over characters: kSpaceSymbol in front, and for every space.
absl::Status ReadSpaceStep(const Json& step, TokenizerJson* file) {
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(step, "normalizer"));
  if (type == "Prepend" && Is(step, "prepend", kSpaceSymbol)) {
    file->metaspace->prefix = TokenizerJson::Metaspace::Prefix::kAlways;
    return absl::OkStatus();
  }
  if (type == "Replace" && IsPattern(step, " ") && Is(step, "content", kSpaceSymbol)) {
    return absl::OkStatus();
  }
  return Unknown("normalizer", step, "Prepend \u2581 and Replace \" \" by \u2581");
}

absl::Status ReadNormalizer(const Json& json, TokenizerJson* file) {
  const Json* normalizer = Find(json, "normalizer");
  if (normalizer == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(*normalizer, "normalizer"));
  if (!file->metaspace.has_value()) {
    if (type != "NFC") return Unknown("normalizer.type", type, "\"NFC\" or null");
    file->nfc = true;
    return absl::OkStatus();
  }
  if (type != "Sequence") return ReadSpaceStep(*normalizer, file);
  const Json* steps = Find(*normalizer, "normalizers");
  if (steps == nullptr || !steps->is_array()) {
    return absl::InvalidArgumentError("\"normalizer.normalizers\" is no list");
  }
  for (const Json& step : *steps) FOLIO_RETURN_IF_ERROR(ReadSpaceStep(step, file));
  return absl::OkStatus();
}

// Of BPE over characters; what the normalizer has not done.
absl::Status ReadMetaspace(const Json& pre, TokenizerJson* file) {
  using Prefix = TokenizerJson::Metaspace::Prefix;
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(pre, "pre_tokenizer"));
  // The normalizer has left no spaces to split at.
  if (type == "Split" && IsPattern(pre, " ")) return absl::OkStatus();
  if (type != "Metaspace" || !Is(pre, "replacement", kSpaceSymbol)) {
    return Unknown("pre_tokenizer", pre, "Metaspace with \u2581, or null");
  }
  FOLIO_ASSIGN_OR_RETURN(const bool splits, OptionalBool(pre, "split", true));
  if (splits) return Unknown("pre_tokenizer.split", splits, "false");
  FOLIO_ASSIGN_OR_RETURN(const std::string scheme, OptionalString(pre, "prepend_scheme", "always"));
  file->metaspace->only_if_missing = true;
  file->metaspace->prefix = scheme == "never"   ? Prefix::kNever
                            : scheme == "first" ? Prefix::kFirst
                                                : Prefix::kAlways;
  return absl::OkStatus();
}

// Appends the patterns of one step; `*bytes` is set where bytes become characters.
absl::Status ReadStep(const Json& step, TokenizerJson* file, bool* bytes) {
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(step, "pre_tokenizer"));
  if (type == "ByteLevel") {
    FOLIO_ASSIGN_OR_RETURN(const bool prefix, OptionalBool(step, "add_prefix_space"));
    if (prefix) return Unknown("pre_tokenizer.add_prefix_space", prefix, "false");
    FOLIO_ASSIGN_OR_RETURN(const bool use_regex, OptionalBool(step, "use_regex", true));
    if (use_regex) file->patterns.emplace_back(kGpt2Pattern);
    *bytes = true;
    return absl::OkStatus();
  }
  if (type != "Split") return Unknown("pre_tokenizer.type", type, "ByteLevel, Split, Sequence");
  FOLIO_ASSIGN_OR_RETURN(const std::string behavior, OptionalString(step, "behavior", ""));
  if (behavior != "Isolated") {
    return Unknown("pre_tokenizer.behavior", behavior, "\"Isolated\"");
  }
  FOLIO_ASSIGN_OR_RETURN(const bool invert, OptionalBool(step, "invert"));
  if (invert) return Unknown("pre_tokenizer.invert", invert, "false");
  const Json* pattern = Find(step, "pattern");
  const Json* regex =
      pattern != nullptr && pattern->is_object() ? Find(*pattern, "Regex") : nullptr;
  if (regex == nullptr || !regex->is_string()) {
    return Unknown("pre_tokenizer.pattern", pattern == nullptr ? Json() : *pattern,
                   "{\"Regex\": ...}");
  }
  file->patterns.push_back(regex->get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& json, TokenizerJson* file) {
  const Json* pre = Find(json, "pre_tokenizer");
  if (file->metaspace.has_value() && pre != nullptr) return ReadMetaspace(*pre, file);
  if (file->metaspace.has_value() && Find(json, "normalizer") != nullptr) return absl::OkStatus();
  if (pre == nullptr) return Unknown("pre_tokenizer", Json(), "ByteLevel, Split, Sequence");
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(*pre, "pre_tokenizer"));
  bool bytes = false;
  if (type == "Sequence") {
    const Json* steps = Find(*pre, "pretokenizers");
    if (steps == nullptr || !steps->is_array()) {
      return absl::InvalidArgumentError("\"pre_tokenizer.pretokenizers\" is no list");
    }
    for (const Json& step : *steps) {
      if (bytes) return Unknown("pre_tokenizer", *pre, "ByteLevel as the last step");
      FOLIO_RETURN_IF_ERROR(ReadStep(step, file, &bytes));
    }
  } else {
    FOLIO_RETURN_IF_ERROR(ReadStep(*pre, file, &bytes));
  }
  if (!bytes) return Unknown("pre_tokenizer", *pre, "with a step ByteLevel");
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& json, TokenizerJson* file) {
  const Json* added = Find(json, "added_tokens");
  if (added == nullptr) return absl::OkStatus();
  if (!added->is_array()) return Bad("added_tokens", *added, "a list");
  for (const Json& token : *added) {
    if (!token.is_object()) return Bad("added_tokens", token, "an object");
    TokenizerJson::AddedToken out;
    FOLIO_ASSIGN_OR_RETURN(out.id, RequiredInt(token, "id", kIds));
    FOLIO_ASSIGN_OR_RETURN(out.content, OptionalString(token, "content", ""));
    FOLIO_ASSIGN_OR_RETURN(out.special, OptionalBool(token, "special"));
    FOLIO_ASSIGN_OR_RETURN(out.normalized, OptionalBool(token, "normalized", !out.special));
    if (out.content.empty()) return Bad("added_tokens", token, "with a content");
    bool single_word = false;
    for (const auto& [key, flag] : {std::pair("lstrip", &out.strips_left),
                                    {"rstrip", &out.strips_right},
                                    {"single_word", &single_word}}) {
      FOLIO_ASSIGN_OR_RETURN(*flag, OptionalBool(token, key));
      if (*flag && !out.special) return Unknown(absl::StrCat("added_tokens.", key), true, "false");
    }
    file->added.push_back(std::move(out));
  }
  return absl::OkStatus();
}

// The special token that a TemplateProcessing puts in front.
absl::Status ReadTemplate(const Json& step, TokenizerJson* file) {
  const Json* single = Find(step, "single");
  const Json* specials = Find(step, "special_tokens");
  if (single == nullptr || !single->is_array() || specials == nullptr || !specials->is_object()) {
    return Bad("post_processor", step, "a template with single and special_tokens");
  }
  bool after_text = false;
  for (const Json& part : *single) {
    const Json* special = part.is_object() ? Find(part, "SpecialToken") : nullptr;
    if (special == nullptr) {
      after_text = true;
      continue;
    }
    if (after_text || file->bos_id >= 0 || !special->is_object()) {
      return Unknown("post_processor.single", *single, "at most one token, in front");
    }
    FOLIO_ASSIGN_OR_RETURN(const std::string name, OptionalString(*special, "id", ""));
    const Json* entry = Find(*specials, name.c_str());
    const Json* ids = entry != nullptr && entry->is_object() ? Find(*entry, "ids") : nullptr;
    if (ids == nullptr || !ids->is_array() || ids->size() != 1) {
      return Bad("post_processor.special_tokens", *specials, "one id for " + name);
    }
    FOLIO_ASSIGN_OR_RETURN(file->bos_id, ReadInt(ids->front(), "post_processor", kIds));
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const Json& json, TokenizerJson* file) {
  const Json* post = Find(json, "post_processor");
  if (post == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const std::string type, TypeOf(*post, "post_processor"));
  const Json alone = Json::array({*post});
  const Json* steps = type == "Sequence" ? Find(*post, "processors") : &alone;
  if (steps == nullptr || !steps->is_array()) return Bad("post_processor", *post, "processors");
  for (const Json& step : *steps) {
    FOLIO_ASSIGN_OR_RETURN(const std::string kind, TypeOf(step, "post_processor"));
    if (kind == "ByteLevel") continue;  // about offsets only
    if (kind != "TemplateProcessing") {
      return Unknown("post_processor.type", kind, "ByteLevel, TemplateProcessing");
    }
    FOLIO_RETURN_IF_ERROR(ReadTemplate(step, file));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerJson> ParseTokenizerJson(const std::string& what, std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(what, text));
  TokenizerJson file;
  for (const auto read :
       {ReadModel, ReadNormalizer, ReadPreTokenizer, ReadAddedTokens, ReadPostProcessor}) {
    const absl::Status status = read(json, &file);
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  }
  return file;
}

}  // namespace folio
