#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/page_home.h"
#include "gtest/gtest.h"

namespace folio::test {

// A home of pages in memory. Writes and reads end when they are waited for, or when told; both fail
// when told, and do not end while `hangs`.
class FakeHome final : public PageHome {
 public:
  FakeHome(int num_slices, size_t slice_bytes)
      : num_slices_(num_slices), slice_bytes_(slice_bytes) {}

  bool fails_writes = false;
  bool fails_reads = false;
  bool hangs = false;
  int64_t num_reads = 0;
  int64_t num_reads_at_last_wait = 0;

  // Ends the first `count` writes that are under way.
  void EndWrites(size_t count) {
    for (; count > 0 && !writing_.empty(); --count) EndWrite();
  }
  size_t num_pages() const { return pages_.size(); }
  size_t num_writing() const { return writing_.size(); }

  void StartWrite(FrameId frame, uint64_t /*run*/, std::vector<const std::byte*> slices) override {
    EXPECT_EQ(std::ssize(slices), num_slices_);
    EXPECT_FALSE(pages_.contains(frame)) << "written twice";
    writing_.push_back({frame, std::move(slices)});
  }
  void TakeWritten(bool wait, std::vector<Written>* written) override {
    if (wait && written_.empty() && !hangs) EndWrites(1);
    *written = std::exchange(written_, {});
  }
  std::unique_ptr<PendingReads> StartReads(std::vector<SliceRead> reads) override {
    num_reads += std::ssize(reads);
    return std::make_unique<Reads>(this, std::move(reads));
  }
  void Free(FrameId frame) override { EXPECT_EQ(pages_.erase(frame) + refused_.erase(frame), 1u); }

 private:
  struct Write {
    FrameId frame;
    std::vector<const std::byte*> slices;
  };
  class Reads final : public PendingReads {
   public:
    Reads(FakeHome* home, std::vector<SliceRead> reads) : home_(home), reads_(std::move(reads)) {}
    ~Reads() override { EXPECT_TRUE(done_); }
    bool Wait() override {
      home_->num_reads_at_last_wait = home_->num_reads;
      return home_->hangs ? false : Do();
    }
    bool done() const override { return done_; }
    const absl::Status& status(size_t read) const override { return statuses_[read]; }

   private:
    bool Do() {
      if (std::exchange(done_, true)) return true;
      for (const SliceRead& read : reads_) {
        const bool fails = home_->fails_reads;
        statuses_.push_back(fails ? absl::DataLossError("a fault") : absl::OkStatus());
        const std::string& page = home_->pages_.at(read.frame);
        if (!fails) {
          std::memcpy(read.to, &page[read.slice * home_->slice_bytes_], home_->slice_bytes_);
        }
      }
      return true;
    }

    FakeHome* const home_;
    const std::vector<SliceRead> reads_;
    std::vector<absl::Status> statuses_;
    bool done_ = false;
  };

  void EndWrite() {
    const Write write = std::move(writing_.front());
    writing_.pop_front();
    refused_.erase(write.frame);
    if (fails_writes) {
      refused_.insert(write.frame);
      written_.push_back({write.frame, absl::ResourceExhaustedError("no space left")});
      return;
    }
    std::string& page = pages_[write.frame];
    for (const std::byte* slice : write.slices) {
      page.append(reinterpret_cast<const char*>(slice), slice_bytes_);
    }
    written_.push_back({write.frame, absl::OkStatus()});
  }

  const int num_slices_;
  const size_t slice_bytes_;
  std::deque<Write> writing_;
  std::vector<Written> written_;
  std::map<FrameId, std::string> pages_;
  std::set<FrameId> refused_;
};

}  // namespace folio::test
