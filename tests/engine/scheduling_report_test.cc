// What a request is told of how it came to run.
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

class SchedulingReport : public EngineLoopTest {
 protected:
  std::shared_ptr<Recorder> SubmitOf(const TenantPtr& tenant, int prompt, int max_new) {
    GenerateSpec spec = Spec(prompt, max_new);
    spec.tenant = tenant;
    return Submit(++last_id_, std::move(spec));
  }
  static Scheduling ReportOf(const std::shared_ptr<Recorder>& recorder) {
    EXPECT_TRUE(recorder->completed().has_value()) << recorder->status();
    return recorder->completed().value_or(CompletedEvent{}).scheduling;
  }
  // All of the wait has a reason.
  static void ExpectWhole(const std::shared_ptr<Recorder>& recorder) {
    const Scheduling report = ReportOf(recorder);
    EXPECT_NEAR(report.turn_seconds + report.memory_seconds + report.document_seconds,
                recorder->completed()->timings.queue_seconds, 1e-9);
  }
  RequestId last_id_ = 0;
};

TEST_F(SchedulingReport, StepsAndWhoElseWasInThem) {
  const auto alone = SubmitOf(nullptr, 100, 3);
  RunUntilIdle();
  // 64 and 36 tokens of its prompt, then one each for the next two tokens.
  Scheduling report = ReportOf(alone);
  EXPECT_EQ(report.num_steps, 4);
  EXPECT_EQ(report.mean_step_requests, 1);
  EXPECT_EQ(report.step_token_share, 1);
  const auto first = SubmitOf(nullptr, 10, 4);
  const auto second = SubmitOf(nullptr, 30, 2);
  RunUntilIdle();
  // Steps of 10 + 30, 1 + 1, 1 and 1 tokens.
  report = ReportOf(first);
  EXPECT_EQ(report.num_steps, 4);
  EXPECT_EQ(report.mean_step_requests, 6.0 / 4);
  EXPECT_EQ(report.step_token_share, 13.0 / 44);
  report = ReportOf(second);
  EXPECT_EQ(report.num_steps, 2);
  EXPECT_EQ(report.step_token_share, 31.0 / 42);
  EXPECT_EQ(report.times_preempted, 0);
  EXPECT_EQ(report.times_restarted, 0);
}

TEST_F(SchedulingReport, AWaitForAPlaceIsAWaitForItsTurn) {
  for (int n = 0; n < 4; ++n) SubmitOf(nullptr, 5, 10);
  loop_.RunStep();
  const auto later = SubmitOf(nullptr, 5, 2);
  RunUntilIdle();
  ExpectWhole(later);
  EXPECT_GT(ReportOf(later).turn_seconds, 0);
  EXPECT_EQ(ReportOf(later).memory_seconds, 0);
  EXPECT_EQ(ReportOf(later).document_seconds, 0);
}

TEST_F(SchedulingReport, AWaitForRoomInTheCacheIsOne) {
  SubmitOf(nullptr, 60 * 16, 20);
  loop_.RunStep();
  const auto large = SubmitOf(nullptr, 60 * 16, 2);
  RunUntilIdle();
  ExpectWhole(large);
  EXPECT_GT(ReportOf(large).memory_seconds, 0);
  EXPECT_EQ(ReportOf(large).document_seconds, 0);
}

TEST_F(SchedulingReport, AWaitForTheDocumentIsOne) {
  const DocumentHandle book = Upload("book", 300);
  GenerateSpec spec = Spec(5, 2, book);
  spec.attention = Attention("lm_infinite");  // its cache has to be made
  const auto question = Submit(++last_id_, std::move(spec));
  RunUntilIdle();
  ExpectWhole(question);
  EXPECT_GT(ReportOf(question).document_seconds, 0);
}

TEST_F(SchedulingReport, WhoGaveItsPlaceToAnotherIsToldSo) {
  const TenantPtr many = NamedTenant("many");
  std::vector<std::shared_ptr<Recorder>> all;
  for (int n = 0; n < 4; ++n) all.push_back(SubmitOf(many, 5, 20));
  loop_.RunStep();
  SubmitOf(NamedTenant("one"), 5, 2);
  RunUntilIdle();
  EXPECT_EQ(ReportOf(all[3]).times_preempted, 1);
  EXPECT_EQ(ReportOf(all[0]).times_preempted, 0);
  ExpectWhole(all[3]);
}

}  // namespace
}  // namespace folio::test
