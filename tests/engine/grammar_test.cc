#include <filesystem>
#include <random>
#include <set>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/grammar/grammar_compiler.h"
#include "engine/tokenizer/piece.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

using ::testing::HasSubstr;

// Control tokens 0 to 2, all bytes, and longer pieces.
class TestTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 2;

  TestTokenizer() {
    for (const char* const name : {"<unk>", "<s>", "</s>"}) {
      pieces_.push_back({PieceKind::kControl, name, ""});
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto kind = byte < 128 ? PieceKind::kText : PieceKind::kBytes;
      pieces_.push_back({kind, "", std::string(1, static_cast<char>(byte))});
    }
    // All words of two to six letters a, b and c.
    std::vector<std::string> words = {""};
    for (size_t i = 0; i < words.size() && words[i].size() < 6; ++i) {
      for (const char letter : {'a', 'b', 'c'}) words.push_back(words[i] + letter);
    }
    for (const std::string& word : words) {
      if (word.size() > 1) pieces_.push_back({PieceKind::kText, "", word});
    }
    for (const char* const text :
         {"ab", "aba", "bb", "12", "123", "true", "{\"", "\": ", "\", \"", ": ", ", ",
          "}",  "\"}", "[[", "ca", "cab", "no",   "non", "none", "é",      "éé", "-1"}) {
      pieces_.push_back({PieceKind::kText, "", text});
    }
  }

  absl::StatusOr<std::string> Decode(std::span<const int32_t>) const override { return ""; }
  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_; }
  int32_t bos_id() const override { return 1; }
  int32_t eos_id() const override { return kEnd; }
  int32_t unk_id() const override { return 0; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return SpaceCut::kNever; }

 private:
  absl::Status AppendTokens(std::string_view, TextStart, const Interrupt&,
                            std::vector<int32_t>*) const override {
    return absl::UnimplementedError("");
  }
  std::vector<Piece> pieces_;
  std::vector<SpecialToken> special_;
};

class Grammar : public testing::Test {
 protected:
  // With tokens that the tokenizer does not know.
  static constexpr int kVocab = 1400;

  std::unique_ptr<AnswerState> Begin(const absl::StatusOr<GrammarSource>& source) {
    if (!source.ok()) return nullptr;
    const auto grammar = compiler_.Compile(*source);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammar.ok() ? (*grammar)->Begin({TestTokenizer::kEnd}) : nullptr;
  }
  // Whether the text, byte for byte, is an answer as a whole.
  bool Accepts(const absl::StatusOr<GrammarSource>& source, const std::string& text) {
    const auto state = Begin(source);
    if (state == nullptr) return false;
    for (const char byte : text) {
      const int32_t token = 3 + static_cast<unsigned char>(byte);
      if (!state->Allows(token)) return false;
      state->Accept(token);
    }
    return state->Allows(TestTokenizer::kEnd);
  }
  std::string Refusal(const absl::StatusOr<GrammarSource>& source) {
    if (!source.ok()) return std::string(source.status().message());
    const auto grammar = compiler_.Compile(*source);
    if (grammar.ok()) return "";
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << grammar.status();
    return std::string(grammar.status().message());
  }

  TestTokenizer tokenizer_;
  GrammarCompiler compiler_{&tokenizer_, kVocab};
};

TEST_F(Grammar, ChoicesAreTheTextsThemselves) {
  const std::vector<std::string> choices = {"none", "non", "a\"b\\c\n", "é", "[x]*", "\x01\x7f"};
  const auto source = ChoicesGrammar(choices);
  for (const std::string& choice : choices) EXPECT_TRUE(Accepts(source, choice)) << choice;
  for (const char* const other : {"", "no", "nonee", "nonea", "x", "[x]", "e"}) {
    EXPECT_FALSE(Accepts(source, other)) << other;
  }
}

TEST_F(Grammar, AnAnswerEndsWhereNothingCanFollow) {
  const auto state = Begin(ChoicesGrammar(std::vector<std::string>{"a", "ab", "cab"}));
  EXPECT_FALSE(state->must_end());
  EXPECT_FALSE(state->Allows(TestTokenizer::kEnd));
  state->Accept(3 + 'a');
  EXPECT_FALSE(state->must_end());
  EXPECT_TRUE(state->Allows(TestTokenizer::kEnd));
  EXPECT_TRUE(state->Allows(3 + 'b'));
  state->Accept(3 + 'b');
  EXPECT_TRUE(state->must_end());
  EXPECT_TRUE(state->status().ok());
}

// Whether `text` is a match of the whole expression (1), the beginning of one (0) or neither (-1),
// by PCRE2.
class Expression {
 public:
  explicit Expression(const std::string& regex) {
    const std::string whole = "(?:" + regex + ")\\z";
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                          PCRE2_ANCHORED | PCRE2_UTF | PCRE2_DOTALL, &error, &at, nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Expression() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  bool Matches(const std::string& text) const { return Run(text, 0) >= 0; }
  bool Begins(const std::string& text) const {
    const int result = Run(text, PCRE2_PARTIAL_HARD);
    return result >= 0 || result == PCRE2_ERROR_PARTIAL;
  }

 private:
  int Run(const std::string& text, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options,
                       match_, nullptr);
  }
  pcre2_code* code_;
  pcre2_match_data* match_;
};

// Of each token whose text is ASCII, in random answers: allowed exactly where an answer begins so.
TEST_F(Grammar, AllowsWhatAnotherLibrarySaysCanFollow) {
  for (const char* const regex : {"[ab]+c", "(ab|aba|bb)*c", "(12|123|1)?[a-c]{2,4}",
                                  "true|[0-9]+(\\.[0-9]{1,2})?", "(a|b)*a(a|b)(a|b)", "(ab?){3}",
                                  "\\w+ \\d\\d", "[^a]{3}", "a*b*c*", "(no|non|none){1,2}x"}) {
    const Expression expected(regex);
    std::mt19937 random(7);
    for (int answer = 0; answer < 6; ++answer) {
      const auto state = Begin(RegexGrammar(regex));
      ASSERT_NE(state, nullptr);
      std::string text;
      for (int step = 0; step < 12 && !state->must_end(); ++step) {
        std::vector<int32_t> open;
        for (int32_t token = 3; token < kVocab; ++token) {
          const bool known = token < tokenizer_.vocab_size();
          const std::string piece = known ? tokenizer_.pieces()[token].text : "";
          const bool ascii = std::ranges::all_of(piece, [](char c) { return c > 0; });
          const bool allowed = state->Allows(token);
          if (piece.empty()) {
            EXPECT_FALSE(allowed) << token;
          } else if (ascii) {
            EXPECT_EQ(allowed, expected.Begins(text + piece))
                << regex << " after '" << text << "': '" << piece << "'";
          }
          if (allowed && ascii) open.push_back(token);
        }
        EXPECT_EQ(state->Allows(TestTokenizer::kEnd), expected.Matches(text))
            << regex << ": " << text;
        if (open.empty()) break;
        const int32_t token = open[random() % open.size()];
        text += tokenizer_.pieces()[token].text;
        state->Accept(token);
      }
    }
  }
}

// Random expressions of a, b and -; nested at most `depth`.
std::string RandomPattern(std::mt19937* random, int depth, bool is_grouped) {
  const auto one_of = [random](auto... options) {
    const std::vector<std::string> all = {options...};
    return all[(*random)() % all.size()];
  };
  const unsigned kind = depth == 0 ? 0 : (*random)() % 10;
  if (kind < 3) return one_of("a", "b", "-", "[ab]", "[b\\-]");
  const auto inner = [&](bool grouped) { return RandomPattern(random, depth - 1, grouped); };
  if (kind < 6) return inner(is_grouped) + inner(is_grouped);
  if (kind < 7) return "(" + inner(true) + "|" + inner(true) + ")";
  return "(" + inner(true) + ")" +
         (is_grouped ? one_of("?", "{2}", "{1,2}", "{0,3}")
                     : one_of("?", "*", "+", "{2,}", "{0,2}"));
}

// The library's own reading of patterns is not always right: PCRE2 says what they match.
TEST_F(Grammar, PatternsInSchemasMatchWhatAnotherLibrarySays) {
  const GrammarVocabulary vocabulary(TextsOfTokens(tokenizer_, kVocab));
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const std::string pattern = RandomPattern(&random, 3, false);
    const auto source =
        JsonSchemaGrammar(nlohmann::json({{"type", "string"}, {"pattern", pattern}}).dump());
    ASSERT_TRUE(source.ok()) << pattern << ": " << source.status();
    const auto grammar = CompileGrammar(vocabulary, *source);
    ASSERT_TRUE(grammar.ok()) << pattern << ": " << grammar.status();
    const Expression expected(pattern);
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (auto length = random() % 7; text.size() < length;) text += "ab-"[random() % 3];
      const auto state = (*grammar)->Begin({TestTokenizer::kEnd});
      bool accepted = true;
      for (const char byte : '"' + text + '"') {
        accepted = accepted && state->Allows(3 + byte);
        if (accepted) state->Accept(3 + byte);
      }
      EXPECT_EQ(accepted && state->Allows(TestTokenizer::kEnd), expected.Matches(text))
          << pattern << " and " << text;
    }
  }
}

TEST_F(Grammar, StringsAndFormatsAreThoseOfJson) {
  const auto schema = [](const char* rest) {
    return JsonSchemaGrammar(R"({"type":"string",)" + std::string(rest) + "}");
  };
  EXPECT_TRUE(Accepts(schema(R"("maxLength":3)"), R"("é-ü")"));
  EXPECT_FALSE(Accepts(schema(R"("maxLength":3)"), R"("abcd")"));
  EXPECT_FALSE(Accepts(schema(R"("maxLength":3)"), "\"a\tb\""));
  EXPECT_FALSE(Accepts(schema(R"("minLength":3)"), R"("ab")"));
  EXPECT_FALSE(Accepts(schema(R"("pattern":".{3}")"), "\"a\nb\""));
  EXPECT_FALSE(Accepts(schema(R"("pattern":"[^a]{3}")"), R"("b"b")"));
  EXPECT_TRUE(Accepts(schema(R"("format":"date")"), R"("2024-12-31")"));
  EXPECT_FALSE(Accepts(schema(R"("format":"date")"), R"("2024-02-30")"));
  EXPECT_FALSE(Accepts(schema(R"("format":"date")"), R"("0000-01-01")"));
  EXPECT_TRUE(Accepts(schema(R"("format":"date-time")"), R"("2024-12-31T23:59:59.5+01:00")"));
  EXPECT_FALSE(Accepts(schema(R"("format":"date-time")"), R"("2024-12-31T24:00:00Z")"));
  EXPECT_TRUE(Accepts(schema(R"("format":"ipv4")"), R"("10.0.255.3")"));
  EXPECT_FALSE(Accepts(schema(R"("format":"ipv4")"), R"("10.0.256.3")"));
  EXPECT_TRUE(Accepts(schema(R"("format":"email")"), R"("a.b@c.org")"));
  EXPECT_FALSE(Accepts(schema(R"("format":"email")"), R"("a@b")"));
  EXPECT_TRUE(Accepts(schema(R"("format":"uuid")"), R"("123e4567-e89b-12d3-a456-426614174000")"));
}

TEST_F(Grammar, SchemasAreJson) {
  const auto person = JsonSchemaGrammar(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":4},"age":{"type":"integer",)"
      R"("minimum":0,"maximum":120},"tags":{"type":"array","items":{"enum":["x","y"]},"maxItems":2}},)"
      R"("required":["name","age"]})");
  EXPECT_TRUE(Accepts(person, R"({"name": "bob", "age": 12})"));
  EXPECT_TRUE(Accepts(person, R"({"name": "é", "age": 120, "tags": ["x", "y"]})"));
  EXPECT_FALSE(Accepts(person, R"({"name": "bob"})"));
  EXPECT_FALSE(Accepts(person, R"({"age": 12, "name": "bob"})"));  // in the order of the schema
  EXPECT_FALSE(Accepts(person, R"({"name": "bobby", "age": 12})"));
  EXPECT_FALSE(Accepts(person, R"({"name": "bob", "age": 121})"));
  EXPECT_FALSE(Accepts(person, R"({"name": "bob", "age": 12, "tags": ["z"]})"));
  EXPECT_FALSE(Accepts(person, R"({"name": "bob", "age": 12, "more": 1})"));

  const auto tree = JsonSchemaGrammar(
      R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"l":{"$ref":"#/$defs/n"}},)"
      R"("required":["v"]}},"$ref":"#/$defs/n"})");
  EXPECT_TRUE(Accepts(tree, R"({"v": 1, "l": {"v": 2, "l": {"v": 3}}})"));
  EXPECT_FALSE(Accepts(tree, R"({"v": 1, "l": 2})"));
}

// Each of them has hung the library, filled the memory or overflowed the stack when it was compiled
// or followed, or has no answer.
TEST_F(Grammar, HostileSourcesAreRefusedInBoundedTime) {
  EXPECT_THAT(Refusal(RegexGrammar("(\\w+ ?){1,100}")), HasSubstr("ambiguous"));
  EXPECT_THAT(Refusal(RegexGrammar("((a{1,100}){1,100}){1,100}")), HasSubstr("ambiguous"));
  EXPECT_THAT(Refusal(RegexGrammar("(((a|b|c)*)*)*")), HasSubstr("ambiguous"));
  std::string deep(2000, '(');
  deep += "a";
  deep.append(2000, ')');
  EXPECT_THAT(Refusal(RegexGrammar(deep)), HasSubstr("maximum limit"));
  EXPECT_NE(Refusal(JsonSchemaGrammar(
                R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})")),
            "");
  EXPECT_THAT(Refusal(JsonSchemaGrammar(std::string(10 << 20, ' '))), HasSubstr("the limit is"));
  EXPECT_THAT(Refusal(RegexGrammar(std::string(10 << 20, 'a'))), HasSubstr("the limit is"));
}

// What the library only warns of would give answers that are not what was asked for.
TEST_F(Grammar, WhatTheLibraryLeavesOutIsRefused) {
  for (const char* const regex : {"a(?=b)", "(a)\\1", "\\bword", "(", "a{3,2}", "[z-a]", "a**"}) {
    EXPECT_NE(Refusal(RegexGrammar(regex)), "") << regex;
  }
  EXPECT_NE(Refusal(JsonSchemaGrammar(R"({"type":"integer","multipleOf":7,"minimum":3})")), "");
  EXPECT_NE(Refusal(JsonSchemaGrammar(R"({"type":"integer","minimum":3,"maximum":2})")), "");
  EXPECT_NE(Refusal(JsonSchemaGrammar(
                R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":2}]})")),
            "");
  EXPECT_FALSE(ChoicesGrammar({}).ok());
  EXPECT_FALSE(ChoicesGrammar(std::vector<std::string>{"a", ""}).ok());
  EXPECT_FALSE(ChoicesGrammar(std::vector<std::string>{"\xff"}).ok());
  EXPECT_FALSE(ChoicesGrammar(std::vector<std::string>(1025, "a")).ok());
}

TEST_F(Grammar, IsCompiledOnce) {
  ScratchDir dir;
  const std::string program = dir.path() + "/trial";
  std::filesystem::create_symlink(DefaultTrialProgram(), program);
  GrammarCompiler compiler(&tokenizer_, kVocab, program);
  const auto first = compiler.Compile(*RegexGrammar("a+"));
  const auto refused = compiler.Compile(*RegexGrammar("("));
  std::filesystem::remove(program);
  EXPECT_EQ(*compiler.Compile(*RegexGrammar("a+")), *first);
  EXPECT_EQ(compiler.Compile(*RegexGrammar("(")).status(), refused.status());
  EXPECT_FALSE(compiler.Compile(*RegexGrammar("b+")).ok());
  EXPECT_FALSE(compiler.Compile({GrammarSource::Kind::kRegex, "a+", "another tenant"}).ok());
  // The same text means something else as a schema.
  EXPECT_FALSE(compiler.Compile({GrammarSource::Kind::kJsonSchema, "a+"}).ok());

  GrammarCompiler none(&tokenizer_, kVocab, program);
  EXPECT_EQ(none.Compile(*RegexGrammar("a+")).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace folio
