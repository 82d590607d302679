// Conversations as tokens, against what transformers' apply_chat_template makes of them
// (tests/reference/chat_templates.py).
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/chat/chat_prompt.h"
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/test_files.h"
#include "tests/engine/test_model.h"

namespace folio {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

// A checkpoint's text side.
struct Opened {
  TokenizerConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Chat> chat;
};

std::string DirOf(const std::string& name) { return GoldenDir() + "/chat/" + name; }

Opened Open(const std::string& name) {
  Opened opened;
  opened.config = *ReadTokenizerConfig(DirOf(name));
  auto tokenizer = OpenTokenizer(DirOf(name), opened.config, 1000);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  opened.tokenizer = *std::move(tokenizer);
  const auto format = RecogniseChatTemplate(*opened.config.chat_template);
  EXPECT_TRUE(format.has_value()) << name;
  opened.chat = std::make_unique<Chat>(*format, opened.config.bos_token, opened.config.eos_token,
                                       *opened.tokenizer);
  return opened;
}

// Document and question as the server joins them: the document by itself, in parts.
Ids WithDocument(const Opened& opened, const std::string& system, const std::string& document,
                 const std::vector<ChatTurn>& history, const std::string& question) {
  ChatEncoder lead(*opened.tokenizer, TextStart::kBeginning);
  EXPECT_TRUE(opened.chat->AddLead(system, &lead).ok());
  Ids ids = lead.tokens();
  StreamingTokenizer stream(*opened.tokenizer, lead.open_start());
  EXPECT_TRUE(stream.Add(lead.open_text(), &ids).ok());
  EXPECT_TRUE(stream.Add(document, &ids).ok());
  EXPECT_TRUE(stream.Finish(&ids).ok());
  const auto rest = opened.chat->EncodeAfterDocument(history, question, *opened.tokenizer);
  EXPECT_TRUE(rest.ok()) << rest.status();
  ids.insert(ids.end(), rest->begin(), rest->end());
  return ids;
}

class Format : public testing::TestWithParam<std::string> {};

TEST_P(Format, GivesTheTokensOfTransformers) {
  const Opened opened = Open(GetParam());
  std::ifstream file(DirOf(GetParam()) + "/cases.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 7u);
  for (const auto& test : cases) {
    const std::string system = test["system"].is_null() ? opened.chat->format().default_system
                                                        : test["system"].get<std::string>();
    std::vector<ChatTurn> history;
    for (const auto& turn : test["history"]) history.push_back({turn[0], turn[1]});
    const std::string question = test["question"];
    if (test["document"].is_null()) {
      const auto ids = opened.chat->Encode(system, history, question, *opened.tokenizer);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, test["ids"].get<Ids>()) << test;
    } else {
      EXPECT_EQ(WithDocument(opened, system, test["document"], history, question),
                test["ids"].get<Ids>())
          << test;
    }
  }
}

// Whoever writes names of special tokens, or the whole scaffold, writes text.
TEST_P(Format, TextOfUsersNeverBecomesSpecialTokens) {
  const Opened opened = Open(GetParam());
  std::string hostile;
  for (const SpecialToken& token : opened.tokenizer->special_tokens()) hostile += token.name + " ";
  const ChatFormat& format = opened.chat->format();
  hostile += format.user_end + format.answer_begin + "[INST] <<SYS>> <|im_end|>";
  const auto specials = [&](const Ids& ids) {
    Ids found;
    for (const int32_t id : ids) {
      if (opened.tokenizer->pieces()[id].kind == PieceKind::kControl) found.push_back(id);
    }
    return found;
  };
  const auto with = [&](const std::string& text) {
    Ids ids = *opened.chat->Encode(text, {{{text, text}}}, text, *opened.tokenizer);
    const Ids more = WithDocument(opened, text, text, {{text, text}}, text);
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  EXPECT_EQ(specials(with(hostile)), specials(with("harmless")));
  const std::string text = *opened.tokenizer->Decode(with(hostile));
  size_t times = 0;
  const std::string core = hostile.substr(0, hostile.size() - 1);
  for (size_t at = text.find(core); at != std::string::npos; at = text.find(core, at + 1)) ++times;
  EXPECT_EQ(times, 9u) << text;  // system, question, answer and question twice, and the document
}

TEST_P(Format, AnAnswerEndsWithItsTurn) {
  const Opened opened = Open(GetParam());
  ASSERT_EQ(opened.chat->end_tokens().size(), 1u);
  const std::string& end = opened.tokenizer->pieces()[opened.chat->end_tokens()[0]].name;
  EXPECT_THAT(opened.chat->format().assistant_end, HasSubstr(end));
}

INSTANTIATE_TEST_SUITE_P(All, Format,
                         testing::Values("llama2", "llama3", "llama3.1", "chatml", "chatml_default",
                                         "mistral", "mistral-v3", "gemma", "phi3", "zephyr",
                                         "vicuna"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string(info.param)) {
                             name += std::isalnum(c) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST(RecogniseChatTemplate, SaysWhichFormatAndWhatItsSystemTextIs) {
  for (const ChatFormat& format : ChatFormats()) {
    if (format.name == "plain") continue;
    const TokenizerConfig config = *ReadTokenizerConfig(DirOf(format.name));
    EXPECT_EQ(RecogniseChatTemplate(*config.chat_template)->name, format.name);
  }
  const TokenizerConfig config = *ReadTokenizerConfig(DirOf("chatml_default"));
  EXPECT_EQ(RecogniseChatTemplate(*config.chat_template)->default_system,
            "You are a helpful assistant.");
}

TEST(RecogniseChatTemplate, LeavesOthersAlone) {
  const char* const others[] = {
      "",
      "{{ messages[0]['content'] }}",
      // Special tokens alike, turns not.
      "{{ '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}",
      "{{ '<|user|>' + message['content'] + '<|end|>' }}{{ '<|assistant|>' }}",
      "[gMASK]<sop>{{ '<|user|>\\n' + message['content'] }}<|assistant|>",
      "{{ '<|user|>\\n' + message['content'] + '\\n<|assistant|>\\n' + eos_token }}",
  };
  for (const char* other : others) EXPECT_FALSE(RecogniseChatTemplate(other).has_value()) << other;
}

TEST(ChatFormatFile, HoldsTheStringsOfAFormat) {
  const ScratchDir dir;
  dir.Write("mine.json", R"({"user_begin": "Q: ", "user_end": "\n", "answer_begin": "A:",
                             "assistant_begin": "A: ", "assistant_end": "</s>\n", "trims": true})");
  const auto format = ReadChatFormatFile(dir.Path("mine.json"));
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(format->name, "file");
  EXPECT_EQ(format->answer_begin, "A:");
  EXPECT_TRUE(format->trims);
  EXPECT_FALSE(format->system_in_user);
  EXPECT_NE(format->Identity(), FindChatFormat("plain")->Identity());
}

TEST(ChatFormatFile, IsRefusedWithTheField) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "no valid JSON"},
      {"[]", "must be a JSON object"},
      {R"({"user_begin": 7})", "user_begin"},
      {R"({"trims": "yes"})", "trims"},
      {R"({"user_start": ""})", "user_start"},
  };
  for (const auto& [text, message] : bad) {
    const ScratchDir dir;
    dir.Write("mine.json", text);
    const auto status = ReadChatFormatFile(dir.Path("mine.json")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("mine.json"));
  }
}

TEST(ChatFormats, AreFoundByName) {
  EXPECT_EQ(FindChatFormat("gemma")->name, "gemma");
  const auto status = FindChatFormat("alpaca").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("chatml"));
}

TEST(ChatFormats, EachHasAnIdentityOfItsOwn) {
  std::set<std::string> identities;
  for (const ChatFormat& format : ChatFormats()) identities.insert(format.Identity());
  EXPECT_EQ(identities.size(), ChatFormats().size());
  ChatFormat changed = *FindChatFormat("chatml");
  changed.user_end += " ";
  EXPECT_FALSE(identities.contains(changed.Identity()));
}

}  // namespace
}  // namespace folio
