#include "engine/kv/slot_cache.h"

#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int64_t kSlotBytes = 4096;

std::unique_ptr<SlotCache> MakeCache(int64_t slots, int64_t slices) {
  auto cache = SlotCache::Create(HostMemory(), kSlotBytes, slots, slices);
  EXPECT_TRUE(cache.ok()) << cache.status();
  return *std::move(cache);
}

// Takes a slot and lets it go, used so often.
void Put(SlotCache* cache, int64_t slice, int uses) {
  ASSERT_TRUE(cache->Take(slice));
  for (int n = 0; n < uses; ++n) cache->CountUse(slice);
  cache->Unpin(slice);
}

TEST(SlotCache, WhatWasUsedLeastLeavesFirst) {
  const auto cache = MakeCache(3, 10);
  Put(cache.get(), 0, 3);
  Put(cache.get(), 1, 1);
  Put(cache.get(), 2, 2);
  Put(cache.get(), 3, 5);
  EXPECT_FALSE(cache->Contains(1));
  Put(cache.get(), 4, 5);
  EXPECT_FALSE(cache->Contains(2));
  for (const int64_t slice : {0, 3, 4}) EXPECT_TRUE(cache->Contains(slice)) << slice;
  EXPECT_EQ(cache->evictions(), 2);
}

TEST(SlotCache, UsesAreRememberedWhileASliceIsAway) {
  const auto cache = MakeCache(2, 10);
  Put(cache.get(), 0, 4);
  Put(cache.get(), 1, 5);
  Put(cache.get(), 2, 6);  // 0 leaves
  ASSERT_FALSE(cache->Contains(0));
  Put(cache.get(), 0, 2);  // 1 leaves: used 5 times, not 6
  EXPECT_FALSE(cache->Contains(1));
  Put(cache.get(), 3, 1);  // 0 and 2 were used as often; 2 is there longer
  EXPECT_TRUE(cache->Contains(0));
  EXPECT_FALSE(cache->Contains(2));
}

TEST(SlotCache, OldUsesFade) {
  const auto cache = MakeCache(2, 10);
  Put(cache.get(), 0, 60);
  Put(cache.get(), 1, 1);
  for (int n = 0; n < 600; ++n) cache->CountUse(1);
  Put(cache.get(), 2, 1);
  EXPECT_FALSE(cache->Contains(0)) << "60 uses long ago count for more than 600 of late";
}

// Passes over ten slices with room for six: two of them are worked on at a time.
TEST(SlotCache, OfWhatIsOnlyScannedThePartThatFitsStays) {
  const auto cache = MakeCache(6, 10);
  int hits = 0;
  for (int64_t n = 0; n < 50; n += 2) {
    for (const int64_t slice : {n % 10, n % 10 + 1}) {
      hits += cache->Contains(slice);
      cache->Contains(slice) ? cache->Pin(slice) : static_cast<void>(cache->Take(slice));
      cache->NoteScan(slice);
    }
    for (const int64_t slice : {n % 10, n % 10 + 1}) cache->Unpin(slice);
  }
  EXPECT_GE(hits, 16) << "four of ten in each pass but the first";
}

TEST(SlotCache, AScanLeavesBeforeWhatIsUsed) {
  const auto cache = MakeCache(2, 10);
  Put(cache.get(), 0, 1);
  for (int64_t slice = 1; slice < 5; ++slice) {
    ASSERT_TRUE(cache->Take(slice));
    cache->NoteScan(slice);
    cache->Unpin(slice);
  }
  EXPECT_TRUE(cache->Contains(0));
  cache->CountUse(4);  // now it is used, too, and came later
  Put(cache.get(), 5, 1);
  EXPECT_FALSE(cache->Contains(0));
  EXPECT_TRUE(cache->Contains(4));
}

TEST(SlotCache, WhatIsPinnedStays) {
  const auto cache = MakeCache(2, 10);
  ASSERT_TRUE(cache->Take(0));
  ASSERT_TRUE(cache->Take(1));
  EXPECT_EQ(cache->pinned_slots(), 2);
  EXPECT_FALSE(cache->Take(2));
  cache->Pin(1);
  cache->Unpin(1);
  EXPECT_FALSE(cache->Take(2)) << "pinned twice, let go once";
  cache->Unpin(1);
  EXPECT_TRUE(cache->Take(2));
  EXPECT_TRUE(cache->Contains(0));
}

TEST(SlotCache, ForgottenSlicesGiveTheirSlotsBack) {
  const auto cache = MakeCache(2, 10);
  ASSERT_TRUE(cache->Take(0));
  Put(cache.get(), 1, 200);
  cache->Forget(0);
  cache->Forget(1);
  EXPECT_EQ(cache->used_slots(), 0);
  EXPECT_EQ(cache->pinned_slots(), 0);
  Put(cache.get(), 1, 0);
  Put(cache.get(), 2, 1);
  Put(cache.get(), 3, 1);
  EXPECT_FALSE(cache->Contains(1)) << "its uses were of another page";
}

TEST(SlotCache, ALowerLimitEvicts) {
  const auto cache = MakeCache(8, 10);
  for (int64_t slice = 0; slice < 6; ++slice) Put(cache.get(), slice, static_cast<int>(slice));
  cache->Pin(0);
  cache->SetLimit(2);
  EXPECT_EQ(cache->used_slots(), 2);
  EXPECT_TRUE(cache->Contains(0)) << "pinned";
  EXPECT_TRUE(cache->Contains(5));
  cache->SetLimit(8);
  for (int64_t slice = 6; slice < 10; ++slice) Put(cache.get(), slice, 1);
  EXPECT_EQ(cache->used_slots(), 6);
}

// Against a plain model: what is pinned is there, counts add up, slots are not shared.
TEST(SlotCache, RandomOperationsKeepItsInvariants) {
  constexpr int kSlices = 64;
  const auto cache = MakeCache(16, kSlices);
  std::mt19937_64 random(TestSeed());
  std::array<int, kSlices> pins{};
  for (int step = 0; step < 20000; ++step) {
    const auto slice = static_cast<int64_t>(random() % kSlices);
    switch (random() % 6) {
      case 0:
        if (!cache->Contains(slice) && cache->Take(slice)) pins[slice] = 1;
        break;
      case 1:
        if (cache->Contains(slice) && pins[slice] < 3) {
          cache->Pin(slice);
          ++pins[slice];
        }
        break;
      case 2:
      case 3:
        if (pins[slice] > 0) {
          cache->Unpin(slice);
          --pins[slice];
        }
        break;
      case 4:
        if (!cache->Contains(slice)) break;
        pins[slice] > 0 && random() % 2 == 0 ? cache->NoteScan(slice) : cache->CountUse(slice);
        break;
      case 5:
        if (pins[slice] <= 1 && random() % 4 == 0) {
          cache->Forget(slice);
          pins[slice] = 0;
        }
        if (random() % 64 == 0) cache->SetLimit(static_cast<int64_t>(8 + random() % 9));
        break;
    }
    std::set<std::byte*> places;
    int64_t used = 0;
    int64_t pinned = 0;
    for (int64_t other = 0; other < kSlices; ++other) {
      if (pins[other] > 0) {
        ASSERT_TRUE(cache->Contains(other)) << "step " << step;
        ++pinned;
      }
      if (!cache->Contains(other)) continue;
      ++used;
      places.insert(cache->At(other));
    }
    ASSERT_EQ(used, cache->used_slots());
    ASSERT_EQ(pinned, cache->pinned_slots());
    ASSERT_EQ(std::ssize(places), used);
    ASSERT_LE(used, std::max(cache->limit(), pinned));
  }
}

}  // namespace
}  // namespace folio::test
