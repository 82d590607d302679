#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace folio {

// What an answer must be, as the library of grammars takes it.
struct GrammarSource {
  enum class Kind : uint8_t { kEbnf, kRegex, kJsonSchema };
  Kind kind = Kind::kEbnf;
  std::string text;
  // Compiled for this tenant alone, so that time tells nobody what others have asked for.
  std::string owner = {};

  bool operator==(const GrammarSource&) const = default;
};

inline constexpr size_t kMaxChoices = 1024;
inline constexpr size_t kMaxChoicesBytes = 64 << 10;
inline constexpr size_t kMaxRegexBytes = 8 << 10;
inline constexpr size_t kMaxSchemaBytes = 128 << 10;

// One of these texts. Errors: INVALID_ARGUMENT for no texts, too many, an empty one or one that is
// not UTF-8.
absl::StatusOr<GrammarSource> ChoicesGrammar(std::span<const std::string> choices);
// A text that the expression matches as a whole. Errors: INVALID_ARGUMENT for one that is empty,
// too long or not UTF-8; what it says is not read here.
absl::StatusOr<GrammarSource> RegexGrammar(std::string_view regex);
// JSON text of this schema. Errors: INVALID_ARGUMENT, those of CheckSchema among them.
absl::StatusOr<GrammarSource> JsonSchemaGrammar(std::string_view schema);

}  // namespace folio
