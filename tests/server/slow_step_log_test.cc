#include "server/slow_step_log.h"

#include <gtest/gtest.h>

namespace folio::server {
namespace {

TEST(SlowStepLog, NamesCallsByTheirIds) {
  CallRegistry calls;
  const auto call = calls.Add({}, [](const absl::Status&) {});
  call->SetRequestId("mine");
  call->AddEngineRequest(3);
  call->AddEngineRequest(4);
  SlowStep step;
  step.seconds = 1.25;
  step.num_answers = 2;
  step.answer_context_tokens = 165;
  step.num_prefills = 5;
  step.prefill_tokens = 90;
  step.prefills = {{{4, 40, 1000}, {0, 30, 0}, {9, 10, 7}}};
  step.num_largest = 3;
  EXPECT_EQ(
      DescribeSlowStep(step, &calls),
      "slow step: 1.250 s; a token for each of 2 answers after 165 tokens together; 90 tokens "
      "to prefill in 5 texts, the largest parts: 40 of \"mine\" after 1000, 30 of a document or "
      "shared prompt "
      "after 0, 10 of a call that has ended after 7");
}

TEST(SlowStepLog, SaysNothingOfWhatWasNotInIt) {
  CallRegistry calls;
  SlowStep step;
  step.seconds = 2;
  step.num_answers = 1;
  step.answer_context_tokens = 9;
  EXPECT_EQ(DescribeSlowStep(step, &calls),
            "slow step: 2.000 s; a token for each of 1 answers after 9 tokens together");
}

}  // namespace
}  // namespace folio::server
