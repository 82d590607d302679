// Which texts become a conversation, and what is around them.
#include <gtest/gtest.h>

#include "server/document_upload.h"
#include "server/prompt_format.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

server::ServerOptions WithFormat(const std::string& name) {
  server::ServerOptions options;
  options.engine.chat_format = name;
  options.document_system = "Read.";
  return options;
}

// Special tokens by their names. The fake tokenizer has a token for each byte, and puts a space in
// front of a text that begins, or that is behind a special token.
std::string Shown(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (token == FakeTokenizer::kBos || token == FakeTokenizer::kEos) {
      text += token == FakeTokenizer::kBos ? "<s>" : "</s>";
    } else {
      text += static_cast<char>(token - FakeTokenizer::kFirstByte);
    }
  }
  return text;
}

class ChatServer : public ::testing::Test {
 protected:
  // What the engine gets for a request, and what the client is told of it.
  struct Asked {
    GenerateSpec spec;
    v1::Accepted accepted;
  };
  Asked Submit(const v1::GenerateRequest& request) {
    Generate call(server_.channel(), request);
    Asked asked;
    asked.accepted = call.Next().accepted();
    asked.spec = server_.engine().WaitForRequest(++num_requests_);
    server_.engine().Emit(Completed(1), num_requests_);
    EXPECT_TRUE(call.Finish().ok());
    return asked;
  }
  std::string FieldThatIsWrong(const v1::GenerateRequest& request) {
    const grpc::Status status = Generate(server_.channel(), request).Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return DetailsOf(status).field();
  }
  // The document as it is when it is ready.
  v1::Document UploadWith(const v1::DocumentHeader& header, const std::string& text) {
    Upload upload(server_.channel());
    upload.Header(header);
    upload.Chunk(0, text);
    upload.FinishUpload();
    const v1::Document ready = upload.NextOf(v1::UploadDocumentEvent::kReady).ready();
    EXPECT_TRUE(upload.Finish().ok());
    return ready;
  }
  std::string DocumentTokens(const std::string& id) {
    return Shown(server_.engine().DocumentTokens(id));
  }
  static v1::DocumentHeader HeaderOf(const std::string& id) {
    v1::DocumentHeader header;
    header.set_document_id(id);
    return header;
  }

  TestServer server_{WithFormat("llama2")};
  RequestId num_requests_ = 0;
};

TEST_F(ChatServer, APromptIsWhatTheUserSays) {
  const Asked asked = Submit(Ask("Who are you?"));
  EXPECT_EQ(Shown(asked.spec.tokens), "<s> [INST] Who are you? [/INST]");
  EXPECT_EQ(asked.accepted.format(), v1::PROMPT_FORMAT_CHAT);
  EXPECT_EQ(asked.spec.stop.stop_token_ids, std::vector<int32_t>{FakeTokenizer::kEos});
}

TEST_F(ChatServer, AnAnswerThatIgnoresItsEndDoesNotEndWithTheTurn) {
  v1::GenerateRequest request = Ask("Who are you?");
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_TRUE(Submit(request).spec.stop.stop_token_ids.empty());
}

TEST_F(ChatServer, SystemTextAndHistoryComeFirst) {
  v1::GenerateRequest request = Ask("Two?");
  request.set_system("Count.");
  v1::ChatTurn* turn = request.add_history();
  turn->set_question("One?");
  turn->set_answer("1");
  EXPECT_EQ(Shown(Submit(request).spec.tokens),
            "<s> [INST] <<SYS>>\nCount.\n<</SYS>>\n\nOne? [/INST] 1 </s><s> [INST] Two? [/INST]");
}

TEST_F(ChatServer, NamesOfSpecialTokensInTextsAreText) {
  v1::GenerateRequest request = Ask("</s><s>?");
  request.set_system("<s>");
  const std::vector<int32_t> tokens = Submit(request).spec.tokens;
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), FakeTokenizer::kBos), 1);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), FakeTokenizer::kEos), 0);
}

TEST_F(ChatServer, RawTextAndTokenIdsAreTakenAsTheyAre) {
  v1::GenerateRequest raw = Ask("Who?");
  raw.set_format(v1::PROMPT_FORMAT_RAW);
  const Asked asked = Submit(raw);
  EXPECT_EQ(Shown(asked.spec.tokens), "<s> Who?");
  EXPECT_EQ(asked.accepted.format(), v1::PROMPT_FORMAT_RAW);
  EXPECT_TRUE(asked.spec.stop.stop_token_ids.empty());
  v1::GenerateRequest ids;
  ids.mutable_prompt_token_ids()->add_ids(FakeTokenizer::kFirstByte + 'a');
  EXPECT_EQ(Shown(Submit(ids).spec.tokens), "a");
}

TEST_F(ChatServer, WhatHasNoMeaningIsRefused) {
  v1::GenerateRequest raw = Ask("Who?");
  raw.set_format(v1::PROMPT_FORMAT_RAW);
  raw.set_system("Count.");
  EXPECT_EQ(FieldThatIsWrong(raw), "system");
  raw.clear_system();
  raw.add_history();
  EXPECT_EQ(FieldThatIsWrong(raw), "history");
  v1::GenerateRequest many = Ask("Who?");
  for (int turn = 0; turn < 257; ++turn) many.add_history();
  EXPECT_EQ(FieldThatIsWrong(many), "history");
  v1::GenerateRequest large = Ask("Who?");
  large.set_system(std::string((64 << 10) + 1, 's'));
  EXPECT_EQ(FieldThatIsWrong(large), "system");
  v1::GenerateRequest unknown = Ask("Who?");
  unknown.set_format(static_cast<v1::PromptFormat>(9));
  EXPECT_EQ(FieldThatIsWrong(unknown), "format");
}

TEST_F(ChatServer, ADocumentStandsInFrontOfItsQuestions) {
  const v1::Document document = UploadWith(HeaderOf("d"), "In the beginning");
  EXPECT_EQ(document.format(), v1::PROMPT_FORMAT_CHAT);
  EXPECT_EQ(document.size_bytes(), 16u);
  EXPECT_EQ(DocumentTokens("d"), "<s> [INST] <<SYS>>\nRead.\n<</SYS>>\n\nIn the beginning");
  v1::GenerateRequest request = AskDocument("d", "What was?");
  EXPECT_EQ(Shown(Submit(request).spec.tokens), "\n\nWhat was? [/INST]");
  v1::ChatTurn* turn = request.mutable_document()->add_history();
  turn->set_question("When?");
  turn->set_answer("Then.");
  const Asked asked = Submit(request);
  EXPECT_EQ(Shown(asked.spec.tokens), "\n\nWhen? [/INST] Then. </s><s> [INST] What was? [/INST]");
  EXPECT_EQ(asked.accepted.format(), v1::PROMPT_FORMAT_CHAT);
  request.set_format(v1::PROMPT_FORMAT_RAW);
  EXPECT_EQ(FieldThatIsWrong(request), "format");
  request.set_format(v1::PROMPT_FORMAT_CHAT);
  request.set_system("Other.");
  EXPECT_EQ(FieldThatIsWrong(request), "system");
}

TEST_F(ChatServer, AHeaderSaysWhichSystemTextADocumentHas) {
  v1::DocumentHeader header = HeaderOf("none");
  header.set_system("");
  UploadWith(header, "text");
  EXPECT_EQ(DocumentTokens("none"), "<s> [INST] text");
  header = HeaderOf("own");
  header.set_system("Sum up.");
  UploadWith(header, "text");
  EXPECT_EQ(DocumentTokens("own"), "<s> [INST] <<SYS>>\nSum up.\n<</SYS>>\n\ntext");
}

TEST_F(ChatServer, ARawDocumentHasRawQuestions) {
  v1::DocumentHeader header = HeaderOf("d");
  header.set_format(v1::PROMPT_FORMAT_RAW);
  EXPECT_EQ(UploadWith(header, "text").format(), v1::PROMPT_FORMAT_RAW);
  EXPECT_EQ(DocumentTokens("d"), "<s> text");
  v1::GenerateRequest request = AskDocument("d", "What?");
  EXPECT_EQ(Shown(Submit(request).spec.tokens), " What?");
  request.mutable_document()->add_history();
  EXPECT_EQ(FieldThatIsWrong(request), "document.history");
  request.mutable_document()->clear_history();
  request.set_format(v1::PROMPT_FORMAT_CHAT);
  EXPECT_EQ(FieldThatIsWrong(request), "format");
}

TEST_F(ChatServer, AnUploadThatGoesOnKeepsItsSystemText) {
  v1::DocumentHeader header = HeaderOf("d");
  header.set_upload_token(kUploadToken);
  header.set_system("Sum up.");
  {
    Upload upload(server_.channel());
    upload.Header(header);
    upload.Chunk(0, "one ");
    upload.NextOf(v1::UploadDocumentEvent::kAck);
    upload.HalfClose();
    EXPECT_FALSE(upload.Finish().ok());
  }
  header.set_system("Another.");
  Upload refused(server_.channel());
  refused.Header(header);
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(DetailsOf(status).field(), "header.system") << status.error_message();
  header.clear_system();
  Upload upload(server_.channel());
  upload.Header(header);
  EXPECT_EQ(upload.Next().created().next_offset(), 4u);
  upload.Chunk(4, "two");
  upload.FinishUpload();
  upload.NextOf(v1::UploadDocumentEvent::kReady);
  EXPECT_TRUE(upload.Finish().ok());
  EXPECT_EQ(DocumentTokens("d"), "<s> [INST] <<SYS>>\nSum up.\n<</SYS>>\n\none two");
}

TEST(RawServer, HasNoChatToOffer) {
  TestServer server;
  v1::GenerateRequest request = Ask("Who?");
  request.set_format(v1::PROMPT_FORMAT_CHAT);
  const grpc::Status status = Generate(server.channel(), request).Finish();
  EXPECT_EQ(DetailsOf(status).field(), "format");
  Upload upload(server.channel());
  v1::DocumentHeader header;
  header.set_system("Read.");
  upload.Header(header);
  EXPECT_EQ(DetailsOf(upload.Finish()).field(), "header.system");
}

// Tokens of 16 and more: offsets are told for every sixteenth.
TEST(DocumentUpload, OffsetsCountFromTheDocumentWhateverIsInFrontOfIt) {
  const FakeTokenizer tokenizer;
  server::MemoryBudget memory(1 << 20);
  const Chat chat(*FindChatFormat("llama2"), "<s>", "</s>", tokenizer);
  const std::string text(6000, 'x');
  for (const std::string& system : {std::string(), std::string("Read."), std::string(5000, 's')}) {
    auto lead = server::LeadOfDocument(&chat, system, tokenizer);
    ASSERT_TRUE(lead.ok());
    server::DocumentUpload upload(
        "name", "", *lead,
        {tokenizer, &memory, [] { return SteadyTime{}; }, std::chrono::seconds(1)});
    MutexLock lock(&upload.work_mu);
    std::vector<int32_t> tokens = *upload.Add(text.substr(0, 100));
    EXPECT_LE(upload.tokenised_bytes(), 100u);
    const std::vector<int32_t> more = *upload.Add(text.substr(100));
    tokens.insert(tokens.end(), more.begin(), more.end());
    const std::vector<int32_t> last = *upload.Finish();
    tokens.insert(tokens.end(), last.begin(), last.end());
    EXPECT_EQ(upload.tokenised_bytes(), text.size());
    const int64_t first = std::ssize(tokens) - std::ssize(text);
    const int64_t aligned = (first + 16) / 16 * 16;
    EXPECT_EQ(upload.ByteOffset(aligned), static_cast<uint64_t>(aligned - first));
    EXPECT_EQ(upload.ByteOffset(0), 0u);
    EXPECT_EQ(upload.ByteOffset(std::ssize(tokens)), text.size());
  }
}

TEST(PromptFormat, OfAStoredDocumentIsComparedWithTheServers) {
  const FakeTokenizer tokenizer;
  const Chat llama2(*FindChatFormat("llama2"), "<s>", "</s>", tokenizer);
  const Chat gemma(*FindChatFormat("gemma"), "<s>", "</s>", tokenizer);
  const std::string stored = server::LeadOfDocument(&llama2, "Read.", tokenizer)->format;
  EXPECT_TRUE(server::IsOfFormat(stored, &llama2));
  EXPECT_FALSE(server::IsOfFormat(stored, &gemma));
  EXPECT_FALSE(server::IsOfFormat(stored, nullptr));
  EXPECT_FALSE(server::IsOfFormat("", &llama2));
  EXPECT_TRUE(server::IsOfFormat("", nullptr));
  EXPECT_NE(stored, server::LeadOfDocument(&llama2, "Sum up.", tokenizer)->format);
}

}  // namespace
}  // namespace folio::testing
