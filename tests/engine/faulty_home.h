#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/page_home.h"
#include "tests/engine/forwarding_files.h"

namespace folio::test {

// A disk that is full while told, and flips a byte of the next read when told.
class FaultyFiles final : public WatchedFiles {
 public:
  using WatchedFiles::WatchedFiles;

  std::atomic<bool> full = false;
  std::atomic<bool> flips_next_read = false;

 private:
  absl::Status MayCreate() override { return MayWrite(); }
  absl::Status MayWrite() override {
    return full ? absl::ResourceExhaustedError("no space left") : absl::OkStatus();
  }
  void AfterRead(std::span<const StoredFile::Piece> pieces) override {
    if (flips_next_read.exchange(false)) pieces[0].to[17] ^= std::byte{4};
  }
};

// A home that has no memory for the next thing it is asked for, when told.
class ForgetfulHome final : public PageHome {
 public:
  explicit ForgetfulHome(PageHome* home) : home_(home) {}
  bool fails_next = false;

  void StartWrite(FrameId frame, uint64_t run, std::vector<const std::byte*> slices) override {
    MaybeFail();
    home_->StartWrite(frame, run, std::move(slices));
  }
  void TakeWritten(bool wait, std::vector<Written>* written) override {
    home_->TakeWritten(wait, written);
  }
  std::unique_ptr<PendingReads> StartReads(std::vector<SliceRead> reads) override {
    MaybeFail();
    return home_->StartReads(std::move(reads));
  }
  void Free(FrameId frame) override { home_->Free(frame); }

 private:
  void MaybeFail() {
    if (std::exchange(fails_next, false)) throw std::bad_alloc();
  }
  PageHome* const home_;
};

}  // namespace folio::test
