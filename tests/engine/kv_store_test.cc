#include "engine/kv/kv_store.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/engine/fake_home.h"

namespace folio {
namespace {

const KvGeometry kGeometry{.num_layers = 1,
                           .num_heads = 2,
                           .num_kv_heads = 1,
                           .head_dim = 32,
                           .padded_dim = 32,
                           .page_tokens = 16,
                           .dtype = DType::kF32};
const int64_t kFrame =
    4096;  // 16 tokens x 32 dims x 4 bytes x 2; summaries take one system page too

std::unique_ptr<KvStore> MakeStore(int64_t frames) {
  auto store = KvStore::Create(kGeometry, frames * kFrame, HostMemory());
  EXPECT_TRUE(store.ok()) << store.status();
  return std::move(*store);
}

AttentionPlan Full() {
  AttentionPlan plan;
  plan.stages.emplace_back();
  return plan;
}

AttentionPlan Window(int64_t window, int sinks) {
  AttentionPlan plan = Full();
  plan.retention = {window, sinks};
  return plan;
}

TEST(KvStore, HoldsOnePagePerSixteenTokens) {
  auto store = MakeStore(10);
  SequenceKv kv;
  ASSERT_TRUE(store->Extend(Full(), 0, 17, &kv).ok());
  EXPECT_EQ(kv.pages.size(), 2u);
  EXPECT_EQ(store->used_page_bytes(), 2 * kFrame);
  store->Release(&kv);
  EXPECT_EQ(store->used_page_bytes(), 0);
}

// A chunk is summarised from the keys of all its pages: they leave memory together.
TEST(KvStore, PagesOfAnUnfinishedChunkDoNotLeaveMemory) {
  test::FakeHome home(1, kFrame);
  const KvTiers tiers{.home = &home, .home_bytes = 100 * kFrame, .step_tokens = 64};
  auto store = *KvStore::Create(kGeometry, 200 * kFrame, HostMemory(), tiers);
  AttentionPlan plan = Full();
  plan.selection.chunk_tokens = 32;
  SequenceKv kv;
  ASSERT_TRUE(store->Extend(plan, 0, 60, &kv).ok());
  store->Seal(plan, 60, &kv);
  EXPECT_EQ(home.num_writing(), 2u);  // of 3 whole pages, and a part of one
  ASSERT_TRUE(store->Extend(plan, 60, 4, &kv).ok());
  store->Seal(plan, 64, &kv);
  EXPECT_EQ(home.num_writing(), 4u);
  store->Release(&kv);
}

TEST(KvStore, TrimKeepsJustWhatTheNextQuerySees) {
  auto store = MakeStore(100);
  const AttentionPlan plan = Window(32, 0);
  SequenceKv kv;
  ASSERT_TRUE(store->Extend(plan, 0, 160, &kv).ok());
  // The query at 160 sees keys 129..160, so page 8 (tokens 128..143) is the first one needed.
  store->Trim(plan, 160, &kv);
  EXPECT_EQ(kv.first_page, 8);
  EXPECT_EQ(kv.pages.size(), 2u);
  // The query at 159 would have seen key 128.
  store->Trim(plan, 159, &kv);
  EXPECT_EQ(kv.first_page, 8);
}

TEST(KvStore, WindowMemoryStaysWithinItsBoundAtAnyLength) {
  auto store = MakeStore(1000);
  const AttentionPlan plan = Window(40, 20);
  const int64_t bound = store->BytesNeeded(plan, 1'000'000, 50, 0);
  EXPECT_EQ(bound, store->BytesNeeded(plan, 10'000, 50, 0));
  SequenceKv kv;
  for (int64_t n = 0; n < 5000; n += 50) {
    ASSERT_TRUE(store->Extend(plan, n, 50, &kv).ok());
    ASSERT_LE(store->used_page_bytes(), bound);
    store->Trim(plan, n + 50, &kv);
  }
}

TEST(KvStore, ForkSharesFramesAndCopiesTheOneItWrites) {
  auto store = MakeStore(10);
  SequenceKv origin;
  ASSERT_TRUE(store->Extend(Full(), 0, 40, &origin).ok());  // pages 0, 1 and half of page 2
  std::memset(store->frame_memory().Frame(origin.pages[2]), 7, kFrame);
  SequenceKv fork = store->Fork(origin);
  EXPECT_EQ(store->used_page_bytes(), 3 * kFrame);
  ASSERT_TRUE(store->Extend(Full(), 40, 1, &fork).ok());
  EXPECT_EQ(fork.pages[0], origin.pages[0]);
  EXPECT_EQ(fork.pages[1], origin.pages[1]);
  EXPECT_NE(fork.pages[2], origin.pages[2]);
  EXPECT_EQ(0, std::memcmp(store->frame_memory().Frame(fork.pages[2]),
                           store->frame_memory().Frame(origin.pages[2]), kFrame));
  EXPECT_EQ(store->FootprintOf(fork).device_bytes, kFrame);
  EXPECT_EQ(store->FootprintOf(fork).shared_bytes, 2 * kFrame);
  store->Release(&origin);
  EXPECT_EQ(store->used_page_bytes(), 3 * kFrame);
  store->Release(&fork);
  EXPECT_EQ(store->used_page_bytes(), 0);
}

TEST(KvStore, ReservationsNeverExceedTheBudget) {
  auto store = MakeStore(10);
  EXPECT_TRUE(store->Reserve(7 * kFrame));
  EXPECT_FALSE(store->Reserve(4 * kFrame));
  EXPECT_TRUE(store->Reserve(3 * kFrame));
  store->Unreserve(7 * kFrame);
  EXPECT_EQ(store->reserved_bytes(), 3 * kFrame);
}

TEST(KvStore, BytesNeededCoversEveryFrameThatGrowthAllocates) {
  auto store = MakeStore(1000);
  AttentionPlan plan = Full();
  plan.selection = {16, 1};
  for (int64_t total : {1, 16, 17, 255, 256, 257, 1000}) {
    SequenceKv kv;
    ASSERT_TRUE(store->Extend(plan, 0, total, &kv).ok());
    EXPECT_LE(store->used_page_bytes() + store->used_summary_bytes(),
              store->BytesNeeded(plan, total, 512, 0));
    store->Release(&kv);
  }
}

TEST(KvStore, RefusesABudgetWithoutRoomForAPage) {
  const auto store = KvStore::Create(kGeometry, 100, HostMemory());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace folio
