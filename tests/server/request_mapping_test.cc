// What services answer that no fake engine stands behind.
#include "server/request_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace folio::server {
namespace {

using testing::ElementsAre;
using Kind = v1::MethodParameter;

TEST(Catalogue, SaysOfWhichKindAParameterIsAndWhichNamesItTakes) {
  MethodInfo info;
  info.name = "toy";
  info.params = {{"window", ParamKind::kInteger, int64_t{7}, 1, 64},
                 {"factor", ParamKind::kReal, 1.5, 1, 2},
                 {"exact", ParamKind::kFlag, true, 0, 1},
                 {"side", ParamKind::kChoice, std::string("right"), 0, 0, {"left", "right"}}};
  v1::ListStrategiesResponse response;
  ToProto(Catalogue{{info}, {}}, &response);
  const auto& parameters = response.strategies(0).parameters();
  ASSERT_EQ(parameters.size(), 4);
  EXPECT_EQ(parameters[0].kind(), Kind::KIND_INTEGER);
  EXPECT_EQ(parameters[0].default_value(), 7);
  EXPECT_EQ(parameters[0].max(), 64);
  EXPECT_EQ(parameters[1].kind(), Kind::KIND_REAL);
  EXPECT_EQ(parameters[1].default_value(), 1.5);
  EXPECT_EQ(parameters[2].kind(), Kind::KIND_FLAG);
  EXPECT_EQ(parameters[2].default_value(), 1);
  EXPECT_EQ(parameters[3].kind(), Kind::KIND_CHOICE);
  EXPECT_EQ(parameters[3].default_choice(), "right");
  EXPECT_THAT(parameters[3].choices(), ElementsAre("left", "right"));
  // As clients of version 0.1.0 know it: the number of the enumeration's value.
  EXPECT_EQ(parameters[3].default_value(), 2);
  EXPECT_EQ(parameters[3].min(), 1);
  EXPECT_EQ(parameters[3].max(), 2);
}

TEST(Attention, GoesThereAndBackWithTheNamesOfItsChoices) {
  const StrategySpec strategy = {
      "long_heads", {{"chunk_size", int64_t{16}}, {"scorer", "quest"}, {"scale_decode", true}}};
  const PositionSpec position = {"dynamic_ntk", {{"factor", 2.0}, {"exact", true}}};
  const v1::AttentionStrategy sent = ToProto(strategy);
  EXPECT_EQ(sent.long_heads().scorer(), v1::LongHeads::SCORER_QUEST);
  const AttentionSpec back = FromProto(sent, ToProto(position));
  EXPECT_EQ(back.strategy, strategy);
  EXPECT_EQ(back.position, position);
}

TEST(Completed, SaysHowTheRequestCameToRun) {
  CompletedEvent completed;
  completed.scheduling = {.turn_seconds = 1.5,
                          .memory_seconds = 2.5,
                          .document_seconds = 3.5,
                          .num_steps = 7,
                          .mean_step_requests = 4.5,
                          .step_token_share = 0.25,
                          .times_preempted = 2,
                          .times_restarted = 1};
  v1::GenerateEvent event;
  ToProto(completed, &event);
  const v1::Scheduling& out = event.completed().scheduling();
  EXPECT_EQ(out.turn_wait_seconds(), 1.5);
  EXPECT_EQ(out.memory_wait_seconds(), 2.5);
  EXPECT_EQ(out.document_wait_seconds(), 3.5);
  EXPECT_EQ(out.steps(), 7u);
  EXPECT_EQ(out.mean_step_requests(), 4.5);
  EXPECT_EQ(out.step_token_share(), 0.25);
  EXPECT_EQ(out.times_preempted(), 2u);
  EXPECT_EQ(out.times_restarted(), 1u);
}

}  // namespace
}  // namespace folio::server
