#include "engine/kv/tiered_pages.h"

#include <map>
#include <random>

#include "engine/kv/tier_mover.h"
#include "gtest/gtest.h"
#include "tests/engine/fake_home.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kLayers = 2;
constexpr int kKvHeads = 2;
constexpr int kSlices = kLayers * kKvHeads;
constexpr int64_t kSlotBytes = 4096;

// Slots for `slots` slices, and frames for `frames` pages.
class TieredPagesTest : public testing::Test, SaysTestSeed {
 protected:
  void Make(int64_t slots, int64_t frames) {
    slots_ = *SlotCache::Create(HostMemory(), kSlotBytes, slots, frames * kSlices);
    pages_ = std::make_unique<TieredPages>(slots_.get(), &home_, kSlices, frames);
    mover_ = std::make_unique<TierMover>(slots_.get(), pages_.get(), &home_, kKvHeads);
  }
  ~TieredPagesTest() override {
    home_.hangs = false;
    mover_.reset();
    pages_.reset();
  }

  // A page filled with a number of its own.
  FrameId NewPage() {
    const FrameId id = pages_->Allocate();
    if (id == kNoFrame) return id;
    content_[id] = ++next_content_;
    for (int slice = 0; slice < kSlices; ++slice) Fill(id, slice);
    return id;
  }
  void Fill(FrameId id, int slice) {
    auto* numbers = reinterpret_cast<int64_t*>(slots_->At(pages_->SliceNumber(id, slice)));
    std::fill_n(numbers, kSlotBytes / 8, content_[id] * kSlices + slice);
  }
  bool Holds(FrameId id, int slice) const {
    const int64_t number = pages_->SliceNumber(id, slice);
    if (!slots_->Contains(number)) return false;
    const auto* numbers = reinterpret_cast<const int64_t*>(slots_->At(number));
    const int64_t wanted = content_.at(id) * kSlices + slice;
    return numbers[0] == wanted && numbers[kSlotBytes / 8 - 1] == wanted;
  }
  FrameId NewPageAtHome() {
    const FrameId id = NewPage();
    pages_->Seal(id);
    while (pages_->NoteWritten(true)) {
    }
    return id;
  }
  static SliceKey Key(FrameId id, int slice) { return {id, slice / kKvHeads, slice % kKvHeads}; }

  FakeHome home_{kSlices, kSlotBytes};
  std::unique_ptr<SlotCache> slots_;
  std::unique_ptr<TieredPages> pages_;
  std::unique_ptr<TierMover> mover_;
  std::map<FrameId, int64_t> content_;
  int64_t next_content_ = 0;
};

TEST_F(TieredPagesTest, PagesThatLeftMemoryComeBackAsTheyWere) {
  Make(8, 10);
  std::vector<FrameId> ids;
  for (int n = 0; n < 10; ++n) {
    ids.push_back(NewPage());
    ASSERT_NE(ids.back(), kNoFrame);
    pages_->Seal(ids.back());
  }
  EXPECT_EQ(pages_->Allocate(), kNoFrame) << "the home is full";
  for (const FrameId id : ids) {
    mover_->Need(std::vector{Key(id, 1), Key(id, 2)}, {});
    EXPECT_TRUE(Holds(id, 1) && Holds(id, 2));
  }
  EXPECT_GE(mover_->counts().misses, 2 * 8);
  EXPECT_EQ(mover_->counts().misses, home_.num_reads);
  mover_->EndStep();
  for (const FrameId id : ids) pages_->Release(id, false);
  EXPECT_EQ(home_.num_pages(), 0u);
  EXPECT_EQ(slots_->used_slots(), 0);
}

TEST_F(TieredPagesTest, OnlyTheSlicesThatAreNeededAreRead) {
  Make(8, 10);
  const FrameId id = NewPageAtHome();
  for (int n = 0; n < 4; ++n) NewPageAtHome();
  ASSERT_FALSE(slots_->Contains(pages_->SliceNumber(id, 3)));
  mover_->Need(std::vector{Key(id, 3)}, {});
  EXPECT_EQ(home_.num_reads, 1);
}

TEST_F(TieredPagesTest, AnOpenPageStaysUntilItsLastOwnerSealsIt) {
  Make(8, 10);
  const FrameId id = NewPage();
  pages_->AddRef(id, true);
  pages_->Seal(id);
  EXPECT_EQ(home_.num_writing(), 0u) << "another sequence still reads it";
  pages_->Release(id, true);
  EXPECT_EQ(home_.num_writing(), 1u);
}

TEST_F(TieredPagesTest, APageThatIsFreedWhileItIsWrittenKeepsItsBytesUntilThen) {
  Make(4, 10);
  const FrameId id = NewPage();
  pages_->Seal(id);
  pages_->Release(id, false);
  EXPECT_EQ(slots_->used_slots(), kSlices);
  const FrameId next = NewPage();  // waits for the write
  EXPECT_NE(next, kNoFrame);
  EXPECT_EQ(home_.num_pages(), 0u);
}

TEST_F(TieredPagesTest, WhatTheHomeRefusesStaysInMemoryAndIsTriedAgain) {
  Make(8, 10);
  home_.fails_writes = true;
  const FrameId first = NewPageAtHome();
  const FrameId second = NewPageAtHome();
  EXPECT_EQ(pages_->home_error().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pages_->Allocate(), kNoFrame) << "memory is full of pages without a home";
  mover_->Need(std::vector{Key(first, 0), Key(second, 3)}, {});
  EXPECT_TRUE(Holds(first, 0) && Holds(second, 3));
  EXPECT_EQ(home_.num_reads, 0);
  mover_->EndStep();
  while (pages_->NoteWritten(true)) {
  }
  home_.fails_writes = false;
  EXPECT_NE(NewPage(), kNoFrame);
  while (pages_->NoteWritten(true)) {
  }
  EXPECT_EQ(home_.num_pages(), 2u);
  EXPECT_TRUE(pages_->home_error().ok());
}

TEST_F(TieredPagesTest, APageThatIsWaitedForInVainIsReportedAndOthersFindRoomOnceItIsWritten) {
  Make(2 * kSlices, 10);
  const FrameId written = NewPage();
  pages_->Seal(written);
  const FrameId open = NewPage();
  home_.hangs = true;
  EXPECT_EQ(NewPage(), kNoFrame);
  EXPECT_EQ(pages_->home_error().code(), absl::StatusCode::kUnavailable);
  home_.hangs = false;
  EXPECT_NE(NewPage(), kNoFrame);
  EXPECT_TRUE(pages_->home_error().ok());
  for (int slice = 0; slice < kSlices; ++slice) EXPECT_TRUE(Holds(open, slice));
  EXPECT_TRUE(pages_->IsHome(written));
}

TEST_F(TieredPagesTest, ALostSliceIsOfItsPageAlone) {
  Make(8, 10);
  const FrameId lost = NewPageAtHome();
  const FrameId other = NewPageAtHome();
  NewPageAtHome();
  NewPageAtHome();
  ASSERT_FALSE(slots_->Contains(pages_->SliceNumber(lost, 0)));
  home_.fails_reads = true;
  mover_->Need(std::vector{Key(lost, 0)}, {});
  EXPECT_TRUE(pages_->IsLost(lost));
  EXPECT_FALSE(pages_->IsLost(other));
  EXPECT_EQ(*slots_->At(pages_->SliceNumber(lost, 0)), std::byte{0}) << "finite numbers";
  mover_->EndStep();
  pages_->Release(lost, false);
  EXPECT_EQ(pages_->num_lost(), 0);
}

TEST_F(TieredPagesTest, AReadThatHangsIsGivenUpOnAndItsSlotIsNotUsedAgain) {
  Make(8, 10);
  const FrameId lost = NewPageAtHome();
  for (int n = 0; n < 3; ++n) NewPageAtHome();
  home_.hangs = true;
  mover_->Need(std::vector{Key(lost, 0)}, {});
  EXPECT_TRUE(pages_->IsLost(lost));
  mover_->EndStep();
  pages_->Release(lost, false);
  EXPECT_EQ(home_.num_pages(), 4u) << "it may still be read";
  EXPECT_EQ(slots_->pinned_slots(), 1);
}

TEST_F(TieredPagesTest, WhatIsHintedAtIsReadOnce) {
  Make(16, 10);
  std::vector<FrameId> ids;
  for (int n = 0; n < 8; ++n) ids.push_back(NewPageAtHome());
  mover_->Need(std::vector{Key(ids[0], 0)}, std::vector{Key(ids[1], 0), Key(ids[1], 1)});
  EXPECT_EQ(home_.num_reads_at_last_wait, 3) << "what comes next is read while this is waited for";
  mover_->Need(std::vector{Key(ids[1], 0), Key(ids[1], 1)}, {});
  EXPECT_TRUE(Holds(ids[1], 0) && Holds(ids[1], 1));
  EXPECT_EQ(home_.num_reads, 3);
  EXPECT_EQ(mover_->counts().misses, 3);
  mover_->Need({}, std::vector{Key(ids[2], 0)});
  mover_->EndStep();
  EXPECT_EQ(slots_->pinned_slots(), 0);
}

// Sequences that come, grow, fork and go over a home that is slow and now and then refuses a write,
// against a plain map of what each page holds.
TEST_F(TieredPagesTest, RandomOperationsNeverGiveWrongBytes) {
  Make(40, 60);
  std::mt19937_64 random(TestSeed());
  struct Owner {
    FrameId id;
    bool open;
  };
  std::vector<Owner> owners;
  std::map<FrameId, int> refs;
  for (int step = 0; step < 8000; ++step) {
    home_.fails_writes = random() % 50 == 0;
    Owner* owner = owners.empty() ? nullptr : &owners[random() % owners.size()];
    switch (random() % 8) {
      case 0:
      case 1: {
        const FrameId id = NewPage();
        if (id == kNoFrame) break;
        owners.push_back({id, true});
        ASSERT_EQ(++refs[id], 1) << "step " << step;
        break;
      }
      case 2:
        if (owner == nullptr || !owner->open) break;
        pages_->Seal(owner->id);
        owner->open = false;
        break;
      case 3:
        if (owner == nullptr) break;
        pages_->AddRef(owner->id, owner->open);
        ++refs[owner->id];
        owners.push_back(Owner(*owner));
        break;
      case 4:
      case 5:
        if (owner == nullptr) break;
        pages_->Release(owner->id, owner->open);
        --refs[owner->id];
        owners.erase(owners.begin() + (owner - owners.data()));
        break;
      case 6:
        home_.EndWrites(random() % 4);
        pages_->NoteWritten(false);
        break;
      case 7: {
        std::map<std::pair<FrameId, int>, SliceKey> wanted;
        if (slots_->limit() - pages_->slots_away_from_home() < 2) break;
        const auto most = static_cast<size_t>(mover_->wave_slices());
        for (int n = 0; n < 12 && !owners.empty() && wanted.size() < most; ++n) {
          const FrameId id = owners[random() % owners.size()].id;
          const int slice = static_cast<int>(random() % kSlices);
          wanted[{id, slice}] = Key(id, slice);
        }
        std::vector<SliceKey> keys;
        for (const auto& [at, key] : wanted) keys.push_back(key);
        if (random() % 2 == 0) mover_->Need({}, keys);
        mover_->Need(keys, {});
        for (const auto& [at, key] : wanted) {
          ASSERT_TRUE(pages_->IsLost(at.first) || Holds(at.first, at.second)) << "step " << step;
        }
        mover_->EndStep();
        break;
      }
    }
    ASSERT_LE(slots_->used_slots(), 40);
    ASSERT_GE(pages_->slots_away_from_home(), 0);
  }
  EXPECT_EQ(pages_->num_lost(), 0);
  for (const Owner& owner : owners) pages_->Release(owner.id, owner.open);
  home_.fails_writes = false;
  while (pages_->NoteWritten(true)) {
  }
  EXPECT_EQ(slots_->used_slots(), 0);
  EXPECT_EQ(pages_->used_frames(), 0);
  EXPECT_EQ(home_.num_pages(), 0u);
}

}  // namespace
}  // namespace folio::test
