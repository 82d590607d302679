#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "client/client.h"
#include "client/eval/eval_runner.h"
#include "client/eval/passkey_task.h"
#include "client/eval/report.h"
#include "client/strategy.h"
#include "google/rpc/error_details.pb.h"
#include "tests/client/fake_server.h"

namespace folio::eval {
namespace {

using folio::testing::AnswerScript;
using folio::testing::FakeServer;
using folio::testing::RichStatus;
using folio::testing::Script;

class PasskeyEval : public ::testing::Test {
 protected:
  PasskeyEval() : client_(server_.Connect()) {
    plan_.methods = *ParseMethods("full,lm_infinite");
    plan_.lengths_tokens = {128, 256};
    plan_.num_trials = 5;
    plan_.concurrency = 2;
    plan_.max_inline_prompt_bytes = 1 << 20;
    plan_.retry.initial_delay = absl::ZeroDuration();
    plan_.retry.max_delay = absl::ZeroDuration();
  }

  absl::StatusOr<std::vector<TrialResult>> Run() {
    const TokenCounter counter = ServerTokenCounter(client_, {});
    auto filler = Filler::Create(GrassSentences(), FillerStart::kBeginning, counter, 1000);
    if (!filler.ok()) return filler.status();
    const PasskeyTask task(*std::move(filler), counter, 1);
    return RunEval(client_, task, plan_, [this](const TrialResult&) { ++num_seen_; });
  }

  FakeServer server_;
  client::Client client_;
  EvalPlan plan_;
  int num_seen_ = 0;
};

TEST_F(PasskeyEval, AsksEveryTrialUnderEveryStrategy) {
  const auto results = Run();
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(results->size(), 2 * 5 * 2);
  EXPECT_EQ(num_seen_, 20);
  for (const TrialResult& result : *results) {
    EXPECT_TRUE(result.correct) << result.answer;
    EXPECT_EQ(result.needle_in_window.has_value(), result.strategy == "lm_infinite");
  }
  std::set<std::string> prompts;
  for (const v1::GenerateRequest& request : server_.requests()) {
    prompts.insert(request.prompt());
    EXPECT_EQ(request.sampling().temperature(), 0);
    EXPECT_EQ(request.stopping().max_new_tokens(), 8);
  }
  EXPECT_EQ(prompts.size(), 10);
}

TEST_F(PasskeyEval, WindowSplitsTheTrialsOfLmInfinite) {
  const auto results = Run();
  ASSERT_TRUE(results.ok()) << results.status();
  // The fake server's window is 64 tokens: at 256 tokens only the depths 0.75 (its needle begins
  // about 80 tokens before the end) and below are outside.
  int inside = 0;
  for (const TrialResult& result : *results) {
    if (result.strategy != "lm_infinite") continue;
    EXPECT_EQ(*result.needle_in_window, result.needle_distance_tokens <= 64);
    inside += *result.needle_in_window ? 1 : 0;
  }
  EXPECT_GT(inside, 0);
  EXPECT_LT(inside, 10);
  const std::vector<Row> rows = SummarizeResults(*results);
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[2].name, "lm_infinite (needle in window)");
  EXPECT_EQ(rows[3].name, "lm_infinite (needle outside)");
  EXPECT_EQ(rows[2].cells[0].num_answers + rows[2].cells[1].num_answers, inside);
}

TEST_F(PasskeyEval, LongPromptsAreUploadedAndDeleted) {
  plan_.max_inline_prompt_bytes = 10;
  const auto results = Run();
  ASSERT_TRUE(results.ok()) << results.status();
  for (const TrialResult& result : *results) EXPECT_TRUE(result.correct);
  EXPECT_EQ(server_.num_deleted(), 20);
  EXPECT_TRUE(server_.documents().empty());
  EXPECT_EQ(server_.requests()[0].document().text(), "What is the pass key? The pass key is");
}

TEST_F(PasskeyEval, RefusalsAreErrorsAndNotWrongAnswers) {
  server_.on_generate = [](const v1::GenerateRequest& request) {
    if (request.strategy().has_full()) {
      return Script{{}, {grpc::StatusCode::FAILED_PRECONDITION, "does not fit"}, false};
    }
    return AnswerScript(request, "no digits");
  };
  const auto results = Run();
  ASSERT_TRUE(results.ok()) << results.status();
  const std::vector<Row> rows = SummarizeResults(*results);
  EXPECT_EQ(rows[0].cells[0].num_errors, 5);
  EXPECT_EQ(rows[0].cells[0].num_answers, 0);
  EXPECT_EQ(rows[1].cells[0].num_answers, 5);
  EXPECT_EQ(rows[1].cells[0].num_correct, 0);
  const std::string table = FormatTable(rows);
  EXPECT_NE(table.find("-!"), std::string::npos) << table;
  EXPECT_NE(table.find("0.0"), std::string::npos) << table;
}

TEST_F(PasskeyEval, FullQueueIsTriedAgain) {
  std::atomic<int> num_calls{0};
  server_.on_generate = [&num_calls](const v1::GenerateRequest& request) {
    if (num_calls++ % 2 == 0) {
      google::rpc::RetryInfo retry;
      retry.mutable_retry_delay()->set_nanos(1);
      return Script{{}, RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", {&retry}), false};
    }
    return AnswerScript(request, "1");
  };
  plan_.concurrency = 1;
  const auto results = Run();
  ASSERT_TRUE(results.ok()) << results.status();
  for (const TrialResult& result : *results) EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(num_calls, 40);
}

TEST_F(PasskeyEval, ServerThatStaysAwayEndsTheRun) {
  server_.on_generate = [](const v1::GenerateRequest&) {
    return Script{{}, {grpc::StatusCode::UNAVAILABLE, "draining"}, false};
  };
  EXPECT_TRUE(absl::IsUnavailable(Run().status()));
}

TEST_F(PasskeyEval, CancellationEndsTheRun) {
  client::CancelSource source;
  source.request_stop();
  plan_.cancel = source.get_token();
  EXPECT_TRUE(absl::IsCancelled(Run().status()));
}

TEST(EvalReport, CsvQuotesAnswers) {
  TrialResult result;
  result.strategy = "full";
  result.target_tokens = 128;
  result.expected = "12345";
  result.answer = " \"1,2\"";
  const std::string csv = FormatCsv({result});
  EXPECT_NE(csv.find("full,128,0,0.0000,12345,\" \"\"1,2\"\"\",0,"), std::string::npos) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
}

TEST(EvalReport, JsonHasAccuracyOnlyWithAnswers) {
  TrialResult right;
  right.strategy = "full";
  right.target_tokens = 128;
  right.correct = true;
  TrialResult failed = right;
  failed.target_tokens = 256;
  failed.status = absl::InternalError("x");
  const nlohmann::ordered_json cells = RowsToJson(SummarizeResults({right, failed}));
  EXPECT_EQ(cells[0]["accuracy"], 1.0);
  EXPECT_FALSE(cells[1].contains("accuracy"));
  EXPECT_EQ(cells[1]["errors"], 1);
  EXPECT_FALSE(TrialToJson(failed).contains("correct"));
  EXPECT_EQ(TrialToJson(failed)["error"], "INTERNAL: x");
}

}  // namespace
}  // namespace folio::eval
