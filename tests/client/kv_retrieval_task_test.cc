#include "client/eval/kv_retrieval_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace folio::eval {
namespace {

// A token is four bytes.
absl::StatusOr<uint64_t> CountBytes(const std::string& text) { return text.size() / 4; }

TEST(KvRetrieval, MakesAJsonObjectThatFitsAndHoldsTheAnswer) {
  const KvRetrievalTask task(CountBytes, 7);
  for (int i = 0; i < 5; ++i) {
    const auto trial = task.MakeTrial(2000, i, 5);
    ASSERT_TRUE(trial.ok()) << trial.status();
    EXPECT_LE(trial->prompt_tokens + task.max_new_tokens(), 2000u);
    EXPECT_GE(trial->prompt_tokens + task.max_new_tokens(), 1950u);
    const auto object = nlohmann::json::parse(trial->context);
    EXPECT_GT(object.size(), 50u);
    bool found = false;
    for (const auto& [key, value] : object.items()) {
      if (trial->question.find(key) == std::string::npos) continue;
      found = true;
      EXPECT_EQ(value, trial->expected);
    }
    EXPECT_TRUE(found);
    EXPECT_TRUE(task.IsCorrect(*trial, trial->expected + "\" as it says"));
    EXPECT_FALSE(task.IsCorrect(*trial, "0000"));
  }
}

TEST(KvRetrieval, TheAskedPairMovesThroughTheObject) {
  const KvRetrievalTask task(CountBytes, 7);
  const auto first = task.MakeTrial(2000, 0, 3);
  const auto last = task.MakeTrial(2000, 2, 3);
  EXPECT_LT(first->context.find(first->expected), 100u);
  EXPECT_GT(last->context.find(last->expected), last->context.size() - 100);
  EXPECT_GT(first->needle_distance_tokens, last->needle_distance_tokens);
}

TEST(KvRetrieval, EqualSeedsGiveEqualTrialsAndTooShortIsRefused) {
  EXPECT_EQ(KvRetrievalTask(CountBytes, 3).MakeTrial(900, 1, 4)->context,
            KvRetrievalTask(CountBytes, 3).MakeTrial(900, 1, 4)->context);
  EXPECT_NE(KvRetrievalTask(CountBytes, 3).MakeTrial(900, 1, 4)->context,
            KvRetrievalTask(CountBytes, 4).MakeTrial(900, 1, 4)->context);
  EXPECT_FALSE(KvRetrievalTask(CountBytes, 3).MakeTrial(40, 0, 1).ok());
}

}  // namespace
}  // namespace folio::eval
