#include "server/call_registry.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace folio::server {
namespace {

SteadyTime At(int ms) { return SteadyTime(std::chrono::milliseconds(ms)); }

class CallRegistryTest : public ::testing::Test {
 protected:
  std::unique_ptr<RunningCall> Add(const std::string& id, const std::string& tenant = "") {
    auto call = registry_.Add({"Generate", "10.0.0.1", tenant, At(1000)},
                              [this, id](const absl::Status& status) {
                                cancelled_.push_back(id + ": " + std::string(status.message()));
                              });
    call->SetRequestId(id);
    return call;
  }
  std::vector<std::string> List(const Viewer& viewer, size_t max = 10) {
    std::vector<std::string> ids;
    total_ =
        registry_.List(viewer, max, [&](const RunningCall&, const RunningCall::Subject& subject) {
          ids.push_back(subject.request_id);
        });
    return ids;
  }

  CallRegistry registry_;
  std::vector<std::string> cancelled_;
  size_t total_ = 0;
};

using Ids = std::vector<std::string>;

TEST_F(CallRegistryTest, ListsWhatRunsTheOldestFirst) {
  const auto a = Add("a");
  auto b = Add("b");
  const auto c = Add("c");
  EXPECT_EQ(List({}), (Ids{"a", "b", "c"}));
  b.reset();
  EXPECT_EQ(List({}), (Ids{"a", "c"}));
  EXPECT_EQ(List({}, 1), Ids{"a"});
  EXPECT_EQ(total_, 2u);
}

TEST_F(CallRegistryTest, ATenantSeesAndCancelsItsOwnAlone) {
  const auto a = Add("same", "red");
  const auto b = Add("same", "blue");
  const auto c = Add("other", "blue");
  EXPECT_EQ(List({"red", false}), Ids{"same"});
  EXPECT_EQ(total_, 1u);
  EXPECT_EQ(List({"", false}), Ids{});
  EXPECT_EQ(registry_.Cancel({"red", false}, "other", absl::CancelledError("no")), 0u);
  EXPECT_EQ(registry_.Cancel({"blue", false}, "other", absl::CancelledError("yes")), 1u);
  EXPECT_EQ(cancelled_, Ids{"other: yes"});
  EXPECT_EQ(registry_.Cancel({}, "same", absl::CancelledError("all")), 2u) << "an administrator";
}

TEST_F(CallRegistryTest, WhatHasEndedIsNotCancelled) {
  Add("a").reset();
  EXPECT_EQ(registry_.Cancel({}, "a", absl::CancelledError("late")), 0u);
  EXPECT_TRUE(cancelled_.empty());
}

TEST_F(CallRegistryTest, AnIdOfADocumentIsShownAsLogsShowIt) {
  const auto call = Add("a");
  call->SetDocumentId("b\x1b[2J");
  EXPECT_EQ(call->subject().document_id, "b\\x1b[2J");
  call->SetDocumentId(std::string(1 << 20, 'x'));
  EXPECT_EQ(call->subject().document_id.size(), 256u);
}

TEST_F(CallRegistryTest, CountsTokensAndTheTimeOfPhases) {
  const auto call = Add("a");
  call->AddPromptTokens(7);
  call->AddPromptTokens(2);
  call->AddCachedTokens(3);
  call->AddCompletionTokens(1);
  EXPECT_EQ(call->tokens().prompt, 9);
  EXPECT_EQ(call->tokens().cached, 3);
  EXPECT_EQ(call->tokens().completion, 1);
  EXPECT_EQ(call->phase(), CallPhase::kReading);
  call->EnterPhase(CallPhase::kQueued, At(2000));
  EXPECT_DOUBLE_EQ(call->SecondsIn(CallPhase::kReading, At(9000)), 1);
  EXPECT_DOUBLE_EQ(call->SecondsIn(CallPhase::kQueued, At(9000)), 7) << "it goes on";
  call->EnterPhase(CallPhase::kDecode, At(5000));  // nothing was to prefill
  call->EnterPhase(CallPhase::kQueued, At(6000));  // another answer is still there
  EXPECT_EQ(call->phase(), CallPhase::kQueued);
  EXPECT_DOUBLE_EQ(call->SecondsIn(CallPhase::kQueued, At(9000)), 3);
  EXPECT_DOUBLE_EQ(call->SecondsIn(CallPhase::kPrefill, At(9000)), 0);
  EXPECT_DOUBLE_EQ(call->SecondsIn(CallPhase::kDecode, At(9000)), 4);
}

}  // namespace
}  // namespace folio::server
