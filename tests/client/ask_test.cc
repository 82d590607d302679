#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "tests/client/cli_run.h"
#include "tests/client/fake_server.h"
#include "tests/scratch_dir.h"

namespace folio::cli {
namespace {

using folio::testing::AnswerScript;
using folio::testing::CliRun;
using folio::testing::FakeServer;
using folio::testing::RichStatus;
using folio::testing::RunFolio;
using folio::testing::Script;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<nlohmann::json> ParseLines(const std::string& text) {
  std::istringstream lines(text);
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

TEST(Ask, PrintsTheAnswerAndASummary) {
  FakeServer server;
  server.on_generate = [](const auto& request) { return AnswerScript(request, "good day"); };
  const CliRun run = RunFolio(server, {"ask", "--question", "hello there"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(run.out, " good day\n");
  EXPECT_EQ(run.err,
            "3 prompt tokens (0 cached), 2 new tokens; first token after 0.25 s, 40.0 tokens/s; "
            "KV 3.0 MiB\n");
  EXPECT_EQ(server.requests()[0].prompt(), "hello there");
}

TEST(Ask, SaysWhatItWaitedForIfThatWasNoticeable) {
  FakeServer server;
  server.on_generate = [](const auto& request) {
    Script script = AnswerScript(request, "good day");
    folio::v1::Scheduling* scheduling =
        script.events.back().mutable_completed()->mutable_scheduling();
    scheduling->set_turn_wait_seconds(1.5);
    scheduling->set_memory_wait_seconds(0.01);
    scheduling->set_document_wait_seconds(2);
    return script;
  };
  const CliRun run = RunFolio(server, {"ask", "--question", "hello there"});
  EXPECT_THAT(run.err, HasSubstr("3.0 MiB; waited 1.50 s for its turn, 2.00 s for its document\n"));
}

TEST(Ask, ReadsTheQuestionFromStdin) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"ask", "--question", "-"}, "from a pipe");
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(server.requests()[0].prompt(), "from a pipe");
}

TEST(Ask, TheAdapterIsThatOfThePromptAndOfTheDocument) {
  FakeServer server;
  RunFolio(server, {"ask", "--question", "x", "--adapter", "poet"});
  EXPECT_EQ(server.requests()[0].adapter(), "poet");
  RunFolio(server, {"ask", "--question", "x"});
  EXPECT_FALSE(server.requests()[1].has_adapter());
  const ScratchDir dir;
  const std::string path = dir.Write("story.txt", "one two three");
  RunFolio(server, {"ask", "--document", path, "--question", "x"});
  RunFolio(server, {"ask", "--document", path, "--question", "x", "--adapter", "poet"});
  RunFolio(server, {"ask", "--document", path, "--question", "x", "--adapter", ""});
  ASSERT_EQ(server.headers().size(), 3u);
  EXPECT_EQ(server.headers()[0].adapter(), "");
  EXPECT_EQ(server.headers()[1].adapter(), "poet");
  EXPECT_NE(server.headers()[1].document_id(), server.headers()[0].document_id());
  EXPECT_EQ(server.requests()[3].adapter(), "poet");
  EXPECT_EQ(server.headers()[2].document_id(), server.headers()[0].document_id());
  EXPECT_TRUE(server.requests()[4].has_adapter());
  EXPECT_EQ(server.requests()[4].adapter(), "");
  RunFolio(server, {"upload", path, "--adapter", "clerk"});
  EXPECT_EQ(server.headers()[3].adapter(), "clerk");
}

TEST(Ask, FormatAndSystemTextAreThoseOfThePromptOrOfTheDocument) {
  FakeServer server;
  RunFolio(server, {"ask", "--question", "x", "--format", "chat", "--system", "Be brief."});
  EXPECT_EQ(server.requests()[0].format(), v1::PROMPT_FORMAT_CHAT);
  EXPECT_EQ(server.requests()[0].system(), "Be brief.");
  RunFolio(server, {"ask", "--question", "x"});
  EXPECT_EQ(server.requests()[1].format(), v1::PROMPT_FORMAT_UNSPECIFIED);
  EXPECT_FALSE(server.requests()[1].has_system());
  const ScratchDir dir;
  const std::string path = dir.Write("story.txt", "one two three");
  RunFolio(server,
           {"ask", "--document", path, "--question", "x", "--format", "raw", "--system", ""});
  EXPECT_EQ(server.headers()[0].format(), v1::PROMPT_FORMAT_RAW);
  EXPECT_TRUE(server.headers()[0].has_system());
  EXPECT_EQ(server.requests()[2].format(), v1::PROMPT_FORMAT_RAW);
  EXPECT_FALSE(server.requests()[2].has_system());
  EXPECT_EQ(RunFolio(server, {"ask", "--question", "x", "--format", "jinja"}).code, kExitUsage);
}

TEST(Ask, SendsAllParameters) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"ask",
                                       "--question",
                                       "x",
                                       "--strategy",
                                       "long_heads:chunk_size=16,attention_length=256,"
                                       "begin_selective_length=240,scorer=quest",
                                       "--position",
                                       "yarn:factor=2.5",
                                       "--max-new-tokens",
                                       "3",
                                       "--temperature",
                                       "0.5",
                                       "--top-k",
                                       "40",
                                       "--top-p",
                                       "0.9",
                                       "--min-p",
                                       "0.1",
                                       "--repetition-penalty",
                                       "1.5",
                                       "--frequency-penalty",
                                       "0.5",
                                       "--presence-penalty",
                                       "-1",
                                       "--logit-bias",
                                       "7=-100",
                                       "--logit-bias",
                                       "9=2.5",
                                       "--bad-word",
                                       "bad, worse",
                                       "--bad-word",
                                       "worst",
                                       "--min-new-tokens",
                                       "2",
                                       "--seed",
                                       "0",
                                       "--stop",
                                       "END",
                                       "--stop",
                                       "a,b",
                                       "--ignore-eos",
                                       "--logprobs",
                                       "2",
                                       "--prompt-logprobs",
                                       "0",
                                       "--echo",
                                       "--timeout",
                                       "20"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  const v1::GenerateRequest request = server.requests()[0];
  EXPECT_TRUE(request.response().prompt_logprobs());
  EXPECT_TRUE(request.response().echo());
  EXPECT_EQ(request.strategy().long_heads().begin_selective_length(), 240);
  EXPECT_EQ(request.stopping().max_new_tokens(), 3);
  EXPECT_EQ(request.stopping().min_new_tokens(), 2);
  EXPECT_THAT(request.stopping().stop(), ElementsAre("END", "a,b"));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_EQ(request.sampling().top_k(), 40);
  EXPECT_TRUE(request.sampling().has_seed());
  EXPECT_FLOAT_EQ(request.sampling().min_p(), 0.1f);
  EXPECT_FLOAT_EQ(request.sampling().frequency_penalty(), 0.5f);
  EXPECT_FLOAT_EQ(request.sampling().presence_penalty(), -1.0f);
  EXPECT_EQ(request.sampling().logit_bias_size(), 2);
  EXPECT_EQ(request.sampling().logit_bias(0).token_id(), 7);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias(0).bias(), -100.0f);
  EXPECT_EQ(request.sampling().logit_bias(1).token_id(), 9);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias(1).bias(), 2.5f);
  EXPECT_THAT(request.sampling().bad_words(), ElementsAre("bad, worse", "worst"));
  EXPECT_EQ(request.response().top_logprobs(), 2);
}

TEST(Ask, AConstraintIsOneOfThree) {
  FakeServer server;
  const ScratchDir dir;
  const std::string path = dir.Write("schema.json", R"({"type":"null"})");
  RunFolio(server, {"ask", "--question", "x", "--choice", "yes, it is", "--choice", "no"});
  EXPECT_THAT(server.requests()[0].constraint().choices().choices(),
              ElementsAre("yes, it is", "no"));
  RunFolio(server, {"ask", "--question", "x", "--regex", "a+"});
  EXPECT_EQ(server.requests()[1].constraint().regex(), "a+");
  RunFolio(server, {"ask", "--question", "x", "--json-schema", path});
  EXPECT_EQ(server.requests()[2].constraint().json_schema(), R"({"type":"null"})");
  RunFolio(server, {"ask", "--question", "x"});
  EXPECT_FALSE(server.requests()[3].has_constraint());
  const CliRun both = RunFolio(server, {"ask", "--question", "x", "--regex", "a", "--choice", "b"});
  EXPECT_EQ(both.code, kExitUsage);
}

TEST(Ask, ABiasThatCannotBeReadIsAWrongCommandLine) {
  FakeServer server;
  for (const std::string bias : {"7", "=1", "a=1", "7=", "-1=1", "7=x"}) {
    const CliRun run = RunFolio(server, {"ask", "--question", "x", "--logit-bias", bias});
    EXPECT_EQ(run.code, kExitUsage) << bias;
    EXPECT_NE(run.err.find("must be ID=BIAS"), std::string::npos) << run.err;
  }
}

TEST(Ask, UploadsAFileOnceAndReusesIt) {
  FakeServer server;
  const ScratchDir dir;
  const std::string path = dir.Write("story.txt", "The pass key is 54321. Remember it.");
  for (int i = 0; i < 2; ++i) {
    const CliRun run = RunFolio(server, {"ask", "--document", path, "--question", "Which key?"});
    EXPECT_EQ(run.code, kExitOk) << run.err;
    EXPECT_EQ(run.out, " 54321.\n");
  }
  EXPECT_EQ(server.documents().size(), 1);
  EXPECT_EQ(server.headers()[0].document_id(), server.headers()[1].document_id());
  // Another strategy is another document.
  RunFolio(server, {"ask", "--document", path, "--question", "?", "--strategy", "full"});
  EXPECT_EQ(server.documents().size(), 2);
  EXPECT_EQ(server.requests()[2].strategy().has_full(), true);
}

// Another client, or a restart of the server, can take the document away before the question.
TEST(Ask, UploadsAFileOnceMoreWhereTheServerHasLostIt) {
  FakeServer server;
  int num_lost = 0;
  int num_to_lose = 1;
  server.on_generate = [&](const v1::GenerateRequest& request) {
    if (num_lost++ < num_to_lose) {
      return Script{{}, {grpc::StatusCode::NOT_FOUND, "no such document"}, false};
    }
    return AnswerScript(request, "good day");
  };
  const ScratchDir dir;
  const std::string path = dir.Write("story.txt", "Some text.");
  const CliRun run = RunFolio(server, {"ask", "--document", path, "--question", "?"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(run.out, " good day\n");
  EXPECT_EQ(server.headers().size(), 2);
  num_to_lose = 100;
  EXPECT_EQ(RunFolio(server, {"ask", "--document", path, "--question", "?"}).code, kExitNotFound);
  EXPECT_EQ(server.headers().size(), 4);
}

TEST(Ask, UsesADocumentOfTheServer) {
  FakeServer server;
  server.StoreDocument("story", "The pass key is 11111. End.", v1::Document::STATE_READY);
  EXPECT_EQ(RunFolio(server, {"ask", "--document", "story", "--question", "?"}).out, " 11111.\n");
  const CliRun missing = RunFolio(server, {"ask", "--document", "other", "--question", "?"});
  EXPECT_EQ(missing.code, kExitNotFound);
  EXPECT_EQ(missing.err, "folio: NOT_FOUND: no such document\n");
}

TEST(Ask, AMissingFileIsNotAMissingDocument) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"ask", "--document", "no/such.txt", "--question", "?"});
  EXPECT_EQ(run.code, kExitFile);
  EXPECT_THAT(run.err, HasSubstr("cannot open no/such.txt: No such file"));
  EXPECT_EQ(server.requests().size(), 0);
}

TEST(Ask, JsonHasOneObjectPerEvent) {
  FakeServer server;
  server.on_generate = [](const auto& request) { return AnswerScript(request, "good day"); };
  const CliRun run = RunFolio(server, {"ask", "--question", "x", "--json"});
  const std::vector<nlohmann::json> lines = ParseLines(run.out);
  ASSERT_EQ(lines.size(), 5);
  EXPECT_TRUE(lines[0].contains("accepted"));
  EXPECT_TRUE(lines[1].contains("prefill"));
  EXPECT_EQ(lines[2]["delta"]["text"], " good");
  EXPECT_EQ(lines[2]["sequence"], "2");
  EXPECT_EQ(lines[4]["completed"]["finish_reason"], "FINISH_REASON_LENGTH");
  EXPECT_EQ(run.err, "");
}

TEST(Ask, ErrorsAreOneLineAndOneObject) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest&) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(2);
    google::rpc::ErrorInfo info;
    info.set_reason("QUEUE_FULL");
    return Script{
        {}, RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", {&retry, &info}), false};
  };
  const CliRun run = RunFolio(server, {"--json", "ask", "--question", "x"});
  EXPECT_EQ(run.code, kExitFull);
  EXPECT_EQ(run.err, "folio: RESOURCE_EXHAUSTED: full [QUEUE_FULL] (retry in 2 s)\n");
  const nlohmann::json error = ParseLines(run.out).at(0)["error"];
  EXPECT_EQ(error["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error["reason"], "QUEUE_FULL");
  EXPECT_EQ(error["retry_delay_seconds"], 2.0);
}

TEST(Ask, AnErrorAfterTextBeginsANewLine) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "half an");
    script.events.pop_back();
    script.status = {grpc::StatusCode::INTERNAL, "lost"};
    return script;
  };
  const CliRun run = RunFolio(server, {"ask", "--question", "x"});
  EXPECT_EQ(run.code, kExitFailure);
  EXPECT_EQ(run.out, " half an\n");
  EXPECT_EQ(run.err, "folio: INTERNAL: lost\n");
}

}  // namespace
}  // namespace folio::cli
