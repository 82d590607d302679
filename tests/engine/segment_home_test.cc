#include "engine/runtime/segment_home.h"

#include <atomic>
#include <filesystem>
#include <fstream>

#include "engine/store/posix_files.h"
#include "gtest/gtest.h"
#include "tests/engine/forwarding_files.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kSlices = 3;
constexpr int64_t kSliceBytes = 4096;

// A file system whose reads or writes wait while told, or that makes no files.
class SlowFiles final : public WatchedFiles {
 public:
  using WatchedFiles::WatchedFiles;

  std::atomic<bool> hangs = false;  // when reading
  std::atomic<bool> write_hangs = false;
  std::atomic<bool> refuses_to_create = false;

 private:
  absl::Status MayCreate() override {
    return refuses_to_create ? absl::ResourceExhaustedError("no space left") : absl::OkStatus();
  }
  absl::Status MayWrite() override {
    write_hangs.wait(true);
    return absl::OkStatus();
  }
  void BeforeRead() override { hangs.wait(true); }
};

class SegmentHomeTest : public testing::Test {
 protected:
  SegmentHomeTest() : files_(*OpenPosixFiles(dir_.path() + "/kv")) { Make({}); }

  void Make(std::chrono::milliseconds deadline) {
    home_.reset();
    SegmentHomeOptions options;
    options.num_slices = kSlices;
    options.slice_bytes = kSliceBytes;
    if (deadline.count() > 0) options.deadline = deadline;
    home_ = *SegmentHome::Create(&files_, "pages", options);
  }
  // Bytes of a page that no other page has.
  std::vector<std::byte>& Page(FrameId frame) {
    std::vector<std::byte>& page = content_[frame];
    if (page.empty()) page.resize(kSlices * kSliceBytes);
    for (size_t n = 0; n < page.size(); ++n) {
      page[n] = static_cast<std::byte>((n / 7 + 31 * static_cast<size_t>(frame)) % 251);
    }
    return page;
  }
  void Write(FrameId frame, uint64_t run) {
    const std::byte* page = Page(frame).data();
    home_->StartWrite(frame, run, {page, page + kSliceBytes, page + 2 * kSliceBytes});
    ++num_under_way_;
  }
  // The statuses of all writes that are under way, which may take longer than the deadline.
  std::vector<PageHome::Written> WaitForWrites() {
    std::vector<PageHome::Written> all;
    std::vector<PageHome::Written> some;
    while (all.size() < num_under_way_) {
      home_->TakeWritten(true, &some);
      all.insert(all.end(), some.begin(), some.end());
    }
    num_under_way_ = 0;
    return all;
  }
  absl::Status Read(FrameId frame, int slice, std::vector<std::byte>* to) {
    to->assign(kSliceBytes, std::byte{0});
    const auto reads = home_->StartReads({{frame, slice, to->data()}});
    if (!reads->Wait()) return absl::DeadlineExceededError("given up on");
    return reads->status(0);
  }
  std::string Directory() const { return dir_.path() + "/kv/pages"; }
  int64_t NumFiles() const {
    return std::distance(std::filesystem::directory_iterator(Directory()), {});
  }

  ScratchDir dir_;
  SlowFiles files_;
  std::map<FrameId, std::vector<std::byte>> content_;
  size_t num_under_way_ = 0;  // writes that WaitForWrites has not answered
  std::unique_ptr<SegmentHome> home_;
};

TEST_F(SegmentHomeTest, SlicesAreReadAsTheyWereWritten) {
  constexpr int kPages = 150;  // of two runs, three segments of the longer
  for (FrameId frame = 0; frame < kPages; ++frame) Write(frame, frame % 10 == 0 ? 2 : 1);
  for (const PageHome::Written& written : WaitForWrites()) EXPECT_TRUE(written.status.ok());
  EXPECT_EQ(NumFiles(), 4);
  std::vector<std::vector<std::byte>> got(kPages * kSlices, std::vector<std::byte>(kSliceBytes));
  std::vector<SliceRead> reads;
  for (int n = 0; n < kPages * kSlices; ++n) {
    const int at = n * 7 % (kPages * kSlices);  // in no order
    reads.push_back({at / kSlices, at % kSlices, got[at].data()});
  }
  const auto pending = home_->StartReads(reads);
  ASSERT_TRUE(pending->Wait());
  for (size_t n = 0; n < reads.size(); ++n) {
    ASSERT_TRUE(pending->status(n).ok()) << pending->status(n);
    const std::byte* wanted = &content_[reads[n].frame][reads[n].slice * kSliceBytes];
    ASSERT_EQ(std::memcmp(reads[n].to, wanted, kSliceBytes), 0) << n;
  }
}

TEST_F(SegmentHomeTest, AFileGoesWithItsLastPage) {
  for (FrameId frame = 0; frame < 70; ++frame) Write(frame, 1);
  WaitForWrites();
  EXPECT_EQ(NumFiles(), 2);
  for (FrameId frame = 0; frame < 64; ++frame) home_->Free(frame);
  Write(100, 1);  // behind the removal
  WaitForWrites();
  EXPECT_EQ(NumFiles(), 1);
  std::vector<std::byte> slice;
  EXPECT_TRUE(Read(69, 2, &slice).ok());
}

TEST_F(SegmentHomeTest, AFullFileIsGivenToTheStoreOnce) {
  for (FrameId frame = 0; frame < SegmentHome::kPages - 1; ++frame) Write(frame, 1);
  WaitForWrites();  // the file is made by the first of them
  files_.refuses_to_create = true;
  Write(100, 2);
  WaitForWrites();
  const std::shared_ptr<PageFile> file = home_->PlaceOf(0).file;
  EXPECT_FALSE(file->TakeSegmentData().has_value());  // a page is missing
  Write(SegmentHome::kPages - 1, 1);
  WaitForWrites();
  const auto data = file->TakeSegmentData();
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->checksums.size(), size_t{kSlices} * SegmentHome::kPages);
  EXPECT_FALSE(file->TakeSegmentData().has_value());
  EXPECT_FALSE(home_->PlaceOf(100).file->TakeSegmentData().has_value());
}

TEST_F(SegmentHomeTest, AFlippedByteIsDataLossOfThatSliceAlone) {
  Write(0, 1);
  WaitForWrites();
  {
    std::fstream file(Directory() + "/0", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(SegmentHome::kPages * kSliceBytes + 5);  // slice 1 of page 0
    file.put('!');
  }
  std::vector<std::byte> slice;
  EXPECT_TRUE(Read(0, 0, &slice).ok());
  EXPECT_EQ(Read(0, 1, &slice).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Read(0, 2, &slice).ok());
}

TEST_F(SegmentHomeTest, AFileThatIsCutIsDataLoss) {
  Write(0, 1);
  WaitForWrites();
  std::filesystem::resize_file(Directory() + "/0", 100);
  std::vector<std::byte> slice;
  EXPECT_EQ(Read(0, 2, &slice).code(), absl::StatusCode::kDataLoss);
}

TEST_F(SegmentHomeTest, AWriteThatFailsSaysSoAndCanBeTriedAgain) {
  files_.refuses_to_create = true;
  Write(0, 1);
  auto written = WaitForWrites();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].status.code(), absl::StatusCode::kResourceExhausted);
  files_.refuses_to_create = false;
  Write(0, 1);
  written = WaitForWrites();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_TRUE(written[0].status.ok());
  std::vector<std::byte> slice;
  ASSERT_TRUE(Read(0, 1, &slice).ok());
  EXPECT_EQ(std::memcmp(slice.data(), &content_[0][kSliceBytes], kSliceBytes), 0);
}

TEST_F(SegmentHomeTest, AReadThatHangsIsGivenUpOn) {
  Make(std::chrono::milliseconds(1));
  Write(0, 1);
  WaitForWrites();
  files_.hangs = true;
  std::vector<std::byte> slice(kSliceBytes);
  const auto reads = home_->StartReads({{0, 0, slice.data()}});
  EXPECT_FALSE(reads->Wait());
  EXPECT_FALSE(reads->done());
  EXPECT_FALSE(home_->AwaitIdle(std::chrono::steady_clock::now()));
  files_.hangs = false;
  files_.hangs.notify_all();
  while (!reads->Wait()) {
  }
  EXPECT_TRUE(reads->status(0).ok());
  EXPECT_TRUE(home_->AwaitIdle(std::chrono::steady_clock::now() + std::chrono::hours(1)));
}

TEST_F(SegmentHomeTest, AWriteThatHangsIsNotWaitedForWithoutEnd) {
  Make(std::chrono::milliseconds(1));
  files_.write_hangs = true;
  Write(0, 1);
  std::vector<PageHome::Written> written;
  home_->TakeWritten(true, &written);
  EXPECT_TRUE(written.empty());
  files_.write_hangs = false;
  files_.write_hangs.notify_all();
  while (written.empty()) home_->TakeWritten(true, &written);
  EXPECT_TRUE(written[0].status.ok());
  std::vector<std::byte> slice;
  EXPECT_TRUE(Read(0, 2, &slice).ok());
}

TEST_F(SegmentHomeTest, WhatALastRunLeftIsRemoved) {
  Write(0, 1);
  WaitForWrites();
  std::ofstream(Directory() + "/left") << "over";
  Make({});
  EXPECT_EQ(NumFiles(), 0);
}

}  // namespace
}  // namespace folio::test
