// Places and memory, shared by tenants and bounded by their limits.
#include <algorithm>

#include "gmock/gmock.h"
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

constexpr int kPages = 100;  // of the fixture, 16 tokens each
constexpr int64_t kPageBytes = 4096;

class TenantAdmission : public EngineLoopTest {
 protected:
  std::shared_ptr<Recorder> SubmitOf(const TenantPtr& tenant, int pages, int max_new,
                                     int priority = 0) {
    GenerateSpec spec = Spec(pages * 16 - max_new, max_new);
    spec.tenant = tenant;
    spec.priority = priority;
    return Submit(++last_id_, std::move(spec));
  }
  static TenantPtr Limited(const TenantLimits& limits) {
    return std::make_shared<Tenant>(Tenant{.name = "limited", .limits = limits});
  }
  static std::string LimitOfStatus(const absl::Status& status) {
    return std::string(status.GetPayload(kLimitPayload).value_or(absl::Cord()));
  }
  const TenantPtr a_ = NamedTenant("a");
  const TenantPtr b_ = NamedTenant("b");
  RequestId last_id_ = 0;
};

TEST_F(TenantAdmission, AnEighthOfTheCacheIsKeptForOtherTenants) {
  for (int n = 0; n < 3; ++n) SubmitOf(a_, 30, 100);
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 2);  // 3 times 30 pages would leave 10
  const auto question = SubmitOf(b_, 20, 2);
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 3);
  while (!question->ended()) ASSERT_TRUE(loop_.RunStep());
  EXPECT_TRUE(question->completed().has_value());
  EXPECT_EQ(loop_.num_waiting(), 1);
}

TEST_F(TenantAdmission, WhatComesBesideOthersOfItsTenantIsCounted) {
  for (const TenantPtr& tenant : {a_, b_, a_}) SubmitOf(tenant, 2, 4);
  RunUntilIdle();
  SubmitOf(a_, 2, 4);
  WorkLoad load;
  loop_.Describe(&load);
  ASSERT_EQ(load.flows.size(), 2);
  EXPECT_EQ(load.flows[0].count, 3);
  EXPECT_EQ(load.flows[0].together, 1);
  EXPECT_EQ(load.flows[1].count, 1);
  EXPECT_EQ(load.flows[1].together, 0);
}

TEST_F(TenantAdmission, OneWithNothingElseMayHaveAllOfTheCache) {
  const auto all = SubmitOf(a_, kPages, 2);
  RunUntilIdle();
  EXPECT_TRUE(all->completed().has_value()) << all->status();
}

// Those of its own tenant wait for it once they have passed it often enough; another tenant, which
// has nothing of the memory that it lacks, does not.
TEST_F(TenantAdmission, WhatDoesNotFitHoldsUpItsOwnTenantWhileThatHoldsTheMemory) {
  const auto running = SubmitOf(a_, 60, 400);
  loop_.RunStep();
  const auto large = SubmitOf(a_, 60, 2);
  std::vector<std::shared_ptr<Recorder>> own(12);
  std::vector<std::shared_ptr<Recorder>> others(30);
  // Before it, for they run sooner.
  for (auto& recorder : own) recorder = SubmitOf(a_, 1, 2);
  const auto num_done = [](const auto& recorders) {
    return std::count_if(recorders.begin(), recorders.end(),
                         [](const auto& r) { return r->ended(); });
  };
  for (auto& recorder : others) recorder = SubmitOf(b_, 1, 2);
  for (int step = 0; step < 200; ++step) loop_.RunStep();
  EXPECT_FALSE(running->ended());
  EXPECT_FALSE(large->ended());
  EXPECT_EQ(num_done(others), std::ssize(others));
  RunUntilIdle();
  EXPECT_TRUE(large->completed().has_value());
  EXPECT_EQ(num_done(own), std::ssize(own));
}

// One whose tenant holds nothing is not starved by the small ones of others.
TEST_F(TenantAdmission, WhatDoesNotFitIsPassedAFewTimesOnlyAcrossTenants) {
  SubmitOf(a_, 60, 400);
  loop_.RunStep();
  const auto large = SubmitOf(b_, 60, 2);
  std::vector<std::shared_ptr<Recorder>> small(30);
  for (auto& recorder : small) recorder = SubmitOf(NamedTenant("c"), 1, 2);
  for (int step = 0; step < 200; ++step) loop_.RunStep();
  EXPECT_EQ(std::count_if(small.begin(), small.end(), [](const auto& r) { return r->ended(); }), 8);
  RunUntilIdle();
  EXPECT_TRUE(large->completed().has_value());
  for (const auto& recorder : small) EXPECT_TRUE(recorder->completed().has_value());
}

TEST_F(TenantAdmission, SoManyOfATenantRunAsItMayHave) {
  const TenantPtr limited = Limited({.max_running_requests = 1});
  const auto first = SubmitOf(limited, 2, 5);
  const auto second = SubmitOf(limited, 2, 5);
  const auto other = SubmitOf(a_, 2, 5);
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 2);
  while (!other->ended()) loop_.RunStep();
  EXPECT_FALSE(second->ended());
  RunUntilIdle();
  EXPECT_TRUE(second->completed().has_value());
}

TEST_F(TenantAdmission, ATenantHasNoMoreOfTheCacheThanItMay) {
  const TenantPtr limited = Limited({.max_kv_bytes = 10 * kPageBytes});
  const auto first = SubmitOf(limited, 6, 20);
  const auto second = SubmitOf(limited, 6, 2);
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 1);
  EXPECT_EQ(store_->reserved_bytes(), 6 * kPageBytes);
  RunUntilIdle();
  EXPECT_TRUE(first->completed().has_value());
  EXPECT_TRUE(second->completed().has_value()) << second->status();
}

TEST_F(TenantAdmission, DocumentsCountToWhatATenantMayHaveOfTheCache) {
  const TenantPtr limited = Limited({.max_kv_bytes = 10 * kPageBytes});
  const DocumentHandle book = Open("book", nullptr, {limited});
  Append(book, 6 * 16);
  Finish(book);
  RunUntilIdle();
  ASSERT_EQ(directory_.Get(book)->state, DocumentState::kReady);
  const auto refused = SubmitOf(limited, 6, 2);
  RunUntilIdle();
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(LimitOfStatus(refused->status()), "tenant.kv_bytes");
  EXPECT_THAT(refused->status().message(), testing::HasSubstr("delete documents"));
  const DocumentHandle larger = Open("larger", nullptr, {limited});
  Append(larger, 6 * 16);
  EXPECT_EQ(directory_.Get(larger)->state, DocumentState::kFailed);
  EXPECT_EQ(LimitOfStatus(directory_.Get(larger)->error), "tenant.kv_bytes");
  Delete(book);
  const auto fits = SubmitOf(limited, 6, 2);
  RunUntilIdle();
  EXPECT_TRUE(fits->completed().has_value()) << fits->status();
}

TEST_F(TenantAdmission, LowerPrioritiesOfATenantGetAPlaceFirst) {
  for (int n = 0; n < 4; ++n) SubmitOf(a_, 2, 10);
  loop_.RunStep();
  const auto usual = SubmitOf(a_, 2, 10, 0);
  const auto sooner = SubmitOf(a_, 2, 10, -10);
  while (!sooner->ended() && !usual->ended()) loop_.RunStep();
  EXPECT_TRUE(sooner->ended());
  RunUntilIdle();
  EXPECT_TRUE(usual->completed().has_value());
}

// The prefill of a document is its tenant's work, too.
TEST_F(TenantAdmission, TheUploadOfOneDoesNotHoldUpTheQuestionOfAnother) {
  const DocumentHandle book = Open("book", nullptr, {a_});
  Append(book, 80 * 16);
  for (int n = 0; n < 3; ++n) SubmitOf(a_, 3, 2);
  loop_.RunStep();
  const auto question = SubmitOf(b_, 2, 2);
  // 30 tokens of its prompt are half of the step's 64.
  loop_.RunStep();
  EXPECT_EQ(question->tokens(), 1);
}

TEST(DocumentsOfTenants, AreBoundedInNumberAndOnDisk) {
  DocumentDirectory directory({.max_documents = 4});
  const Payer limited{std::make_shared<Tenant>(
      Tenant{.name = "a", .limits = {.max_documents = 2, .max_stored_bytes = 100}})};
  const auto create = [&](const std::string& id, const Payer& payer) {
    return directory.Create(id, {}, nullptr, payer).status();
  };
  const auto limit = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    return std::string(status.GetPayload(kLimitPayload).value_or(absl::Cord()));
  };
  ASSERT_TRUE(create("1", limited).ok());
  ASSERT_TRUE(create("2", limited).ok());
  EXPECT_EQ(limit(create("3", limited)), "tenant.documents");
  ASSERT_TRUE(create("3", {}).ok());
  ASSERT_TRUE(directory.Remove(directory.Find("1")->handle).ok());
  ASSERT_TRUE(create("1", limited).ok());
  ASSERT_TRUE(create("4", {}).ok());
  EXPECT_EQ(limit(create("5", {})), "documents");
  ASSERT_TRUE(directory.Remove(directory.Find("1")->handle).ok());
  directory.SetSaved(directory.Find("2")->handle, 100);
  EXPECT_EQ(limit(create("1", limited)), "tenant.stored_bytes");
  directory.SetSaved(directory.Find("2")->handle, 99);
  EXPECT_TRUE(create("1", limited).ok());
}

}  // namespace
}  // namespace folio::test
