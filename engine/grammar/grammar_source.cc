#include "engine/grammar/grammar_source.h"

#include "absl/strings/str_cat.h"
#include "engine/grammar/schema_subset.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

absl::Status CheckText(const char* what, std::string_view text, size_t max_bytes) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", text.size(), " bytes, the limit is ", max_bytes));
  }
  if (IsValidUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not UTF-8"));
}

// A string of EBNF: bytes that could mean something there are written as escapes.
void AppendLiteral(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789ABCDEF";
  out->push_back('"');
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    const bool plain = code >= 0x20 && code != 0x7f && byte != '"' && byte != '\\';
    if (plain) {
      out->push_back(byte);
    } else {
      out->append({'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 15]});
    }
  }
  out->push_back('"');
}

}  // namespace

absl::StatusOr<GrammarSource> ChoicesGrammar(std::span<const std::string> choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", choices.size(), " texts, must have 1 to ", kMaxChoices));
  }
  GrammarSource source{GrammarSource::Kind::kEbnf, "root ::= "};
  size_t bytes = 0;
  for (const std::string& choice : choices) {
    const absl::Status good = CheckText("a choice", choice, kMaxChoicesBytes);
    if (!good.ok()) return good;
    bytes += choice.size();
    if (&choice != &choices.front()) source.text += " | ";
    AppendLiteral(choice, &source.text);
  }
  if (bytes > kMaxChoicesBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes, " bytes of text, the limit is ", kMaxChoicesBytes));
  }
  source.text += "\n";
  return source;
}

absl::StatusOr<GrammarSource> RegexGrammar(std::string_view regex) {
  const absl::Status good = CheckText("the expression", regex, kMaxRegexBytes);
  if (!good.ok()) return good;
  return GrammarSource{GrammarSource::Kind::kRegex, std::string(regex)};
}

absl::StatusOr<GrammarSource> JsonSchemaGrammar(std::string_view schema) {
  const absl::Status good = CheckText("the schema", schema, kMaxSchemaBytes);
  if (!good.ok()) return good;
  auto checked = CheckSchema(schema);
  if (!checked.ok()) return checked.status();
  return GrammarSource{GrammarSource::Kind::kJsonSchema, *std::move(checked)};
}

}  // namespace folio
