#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/page_home.h"
#include "tests/engine/forwarding_files.h"

namespace folio::test {

// A disk that is full while told, and flips a byte of the next read when told.
class FaultyFiles final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;

  std::atomic<bool> full = false;
  std::atomic<bool> flips_next_read = false;

  absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) override {
    if (full) return absl::ResourceExhaustedError("no space left");
    auto file = files().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<Output>(this, *std::move(file));
  }
  absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) override {
    auto file = files().Open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<Stored>(this, *std::move(file));
  }

 private:
  class Output final : public OutputFile {
   public:
    Output(FaultyFiles* owner, std::unique_ptr<OutputFile> file)
        : owner_(owner), file_(std::move(file)) {}
    absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
      if (owner_->full) return absl::ResourceExhaustedError("no space left");
      return file_->Write(offset, bytes);
    }
    absl::Status Sync() override { return file_->Sync(); }

   private:
    FaultyFiles* const owner_;
    const std::unique_ptr<OutputFile> file_;
  };
  class Stored final : public StoredFile {
   public:
    Stored(FaultyFiles* owner, std::unique_ptr<StoredFile> file)
        : owner_(owner), file_(std::move(file)) {}
    int64_t size_bytes() const override { return file_->size_bytes(); }
    absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
      const absl::Status read = file_->Read(offset, pieces);
      if (owner_->flips_next_read.exchange(false)) pieces[0].to[17] ^= std::byte{4};
      return read;
    }

   private:
    FaultyFiles* const owner_;
    const std::unique_ptr<StoredFile> file_;
  };
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
