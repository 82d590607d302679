// Client text in messages.
#include "engine/base/quoted.h"

#include "engine/attention/position_schemes.h"
#include "engine/attention/strategy_registry.h"
#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using ::testing::HasSubstr;

TEST(Quoted, ShortTextIsWhole) {
  EXPECT_EQ(Quoted(""), "''");
  EXPECT_EQ(Quoted("book"), "'book'");
  const std::string longest(kMaxQuotedBytes, 'x');
  EXPECT_EQ(Quoted(longest), "'" + longest + "'");
}

TEST(Quoted, OfALongTextTheBeginningIsShown) {
  EXPECT_EQ(Quoted(std::string(1 << 20, 'x')), "'" + std::string(kMaxQuotedBytes, 'x') + "...'");
}

// A character of two bytes begins at each odd place: one would be cut.
TEST(Quoted, NoCharacterIsCut) {
  std::string text = "x";
  while (text.size() <= kMaxQuotedBytes) text += "ü";
  const std::string quoted = Quoted(text);
  EXPECT_TRUE(IsValidUtf8(quoted));
  EXPECT_EQ(quoted.size(), kMaxQuotedBytes - 1 + 5);
  // No character at all.
  EXPECT_EQ(Quoted(std::string(1000, '\x80')), "'...'");
}

TEST(Quoted, MessagesRepeatOnlyTheBeginningOfAName) {
  const std::string name(1 << 20, 'n');
  const std::string shown = Quoted(name);
  const StrategyLimits limits = {256, 16, 0};
  const auto unknown = ResolveStrategySpec({name, {}}, limits).status();
  const auto parameter = ResolveStrategySpec({"full", {{name, int64_t{1}}}}, limits).status();
  const auto choice = ResolveStrategySpec({"long_heads", {{"scorer", name}}}, limits).status();
  RopeModel rope;
  rope.head_dim = rope.rotary_dim = 16;
  rope.trained_length = rope.original_length = 256;
  const auto position = ResolvePositionSpec({name, {}}, rope, {}).status();
  for (const absl::Status& status : {unknown, parameter, choice, position}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(shown));
    EXPECT_LT(status.message().size(), 1000u);
  }
}

}  // namespace
}  // namespace folio
