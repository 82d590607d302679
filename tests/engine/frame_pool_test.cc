// Memory of freed frames goes back in whole blocks, so that huge pages stay whole, and never while
// a frame in use lies in one.
#include "engine/kv/frame_pool.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace folio {
namespace {

// Counts what is committed by blocks, as the host would if every frame were written to.
class BlockMemory final : public Memory {
 public:
  static constexpr int64_t kBlockBytes = int64_t{2} << 20;

  int64_t available_bytes() const override { return int64_t{1} << 40; }
  bool commits_at_once() const override { return false; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    num_bytes_ = bytes;
    committed_.assign((bytes + kBlockBytes - 1) / kBlockBytes, false);
    const auto base = HostMemory()->Allocate(bytes);
    if (base.ok()) base_ = *base;
    return base;
  }
  void Free(std::byte* base, int64_t bytes) override { HostMemory()->Free(base, bytes); }
  void Discard(std::byte* at, int64_t bytes) override {
    const int64_t offset = at - base_;
    EXPECT_EQ(offset % kBlockBytes, 0);
    EXPECT_EQ(bytes, std::min(kBlockBytes, num_bytes_ - offset));
    committed_[offset / kBlockBytes] = false;
  }
  int64_t discard_bytes() const override { return kBlockBytes; }
  void Copy(std::byte*, const std::byte*, int64_t) override {}
  void Write(std::byte*, const void*, int64_t) override {}
  void ReadPieces(std::span<const Piece>) override {}
  std::span<const float> Read(const float*, int64_t) override { return {}; }

  template <typename Fn>
  void ForBlocks(int64_t begin, int64_t end, Fn fn) {
    for (int64_t block = begin / kBlockBytes; block * kBlockBytes < end; ++block) fn(block);
  }
  void Touch(int64_t begin, int64_t end) {
    ForBlocks(begin, end, [&](int64_t block) { committed_[block] = true; });
  }
  bool Holds(int64_t begin, int64_t end) {
    bool holds = true;
    ForBlocks(begin, end, [&](int64_t block) { holds &= committed_[block]; });
    return holds;
  }
  const std::vector<bool>& committed() const { return committed_; }
  int64_t committed_bytes() const {
    return std::count(committed_.begin(), committed_.end(), true) * kBlockBytes;
  }

 private:
  std::byte* base_ = nullptr;
  int64_t num_bytes_ = 0;
  std::vector<bool> committed_;
};

// Kept of what was freed.
constexpr int64_t kReserveBytes = int64_t{256} << 20;

// Smaller and larger than a block, none a divisor or multiple of it.
class FramePoolBlocks : public testing::TestWithParam<int64_t> {};

TEST_P(FramePoolBlocks, GoBackOnceNoFrameInUseLiesInThem) {
  const int64_t frame_bytes = GetParam();
  const int64_t max_frames = (int64_t{1} << 30) / frame_bytes;
  BlockMemory memory;
  const auto pool = FramePool::Create(&memory, frame_bytes, max_frames);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::mt19937 random(7);
  std::vector<FrameId> used;
  const auto begin = [&](FrameId id) { return id * frame_bytes; };
  const auto take = [&] {
    const FrameId id = (*pool)->Allocate();
    ASSERT_NE(id, kNoFrame);
    memory.Touch(begin(id), begin(id + 1));
    used.push_back(id);
  };
  for (int turn = 0; turn < 4; ++turn) {
    while (static_cast<int64_t>(used.size()) < max_frames) take();
    EXPECT_EQ((*pool)->Allocate(), kNoFrame);
    std::shuffle(used.begin(), used.end(), random);
    for (int64_t left = max_frames; left > max_frames / 4; --left) {
      (*pool)->Release(used.back(), false);
      used.pop_back();
    }
    for (const FrameId id : used) ASSERT_TRUE(memory.Holds(begin(id), begin(id + 1))) << id;
  }
  for (const FrameId id : used) (*pool)->Release(id, false);
  // What is left are the blocks of the reserve, which is what is used first.
  const int64_t num_reserved = (kReserveBytes + frame_bytes - 1) / frame_bytes;
  std::vector<bool> reserved(memory.committed().size(), false);
  for (int64_t i = 0; i < num_reserved; ++i) {
    const FrameId id = (*pool)->Allocate();
    memory.ForBlocks(begin(id), begin(id + 1), [&](int64_t block) { reserved[block] = true; });
  }
  EXPECT_EQ(memory.committed(), reserved);
}

TEST_P(FramePoolBlocks, OfFramesThatFollowEachOtherAllButTheReserveGoBack) {
  const int64_t frame_bytes = GetParam();
  BlockMemory memory;
  const auto pool = FramePool::Create(&memory, frame_bytes, (int64_t{1} << 30) / frame_bytes);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::vector<FrameId> used;
  for (FrameId id = (*pool)->Allocate(); id != kNoFrame; id = (*pool)->Allocate()) {
    memory.Touch(id * frame_bytes, (id + 1) * frame_bytes);
    used.push_back(id);
  }
  for (const FrameId id : used) (*pool)->Release(id, false);
  EXPECT_GE(memory.committed_bytes(), kReserveBytes);
  EXPECT_LE(memory.committed_bytes(), kReserveBytes + frame_bytes + 2 * BlockMemory::kBlockBytes);
}

INSTANTIATE_TEST_SUITE_P(FrameBytes, FramePoolBlocks,
                         testing::Values(int64_t{192} << 10, int64_t{1408} << 10,
                                         int64_t{8456} << 10));

// So that a block is one huge page.
TEST(HostMemory, AlignsWhatIsLargeToBlocks) {
  const int64_t block = HostMemory()->discard_bytes();
  for (const int64_t bytes : {block, block + 1, 5 * block - 4096}) {
    const auto base = HostMemory()->Allocate(bytes);
    ASSERT_TRUE(base.ok()) << base.status();
    EXPECT_EQ(reinterpret_cast<intptr_t>(*base) % block, 0);
    (*base)[0] = (*base)[bytes - 1] = std::byte{1};
    HostMemory()->Free(*base, bytes);
  }
}

}  // namespace
}  // namespace folio
