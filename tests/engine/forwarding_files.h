#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/file_system.h"

namespace folio::test {

// Another file system, for tests that change some of what it does. Without Link, which wants a file
// as the other one made it.
class ForwardingFiles : public FileSystem {
 public:
  explicit ForwardingFiles(std::unique_ptr<FileSystem> files) : files_(std::move(files)) {}

  absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) override {
    return files_->Create(path);
  }
  absl::StatusOr<std::unique_ptr<OutputFile>> Reopen(const std::string& path,
                                                     int64_t size_bytes) override {
    return files_->Reopen(path, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) override {
    return files_->Open(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return files_->MakeDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return files_->Remove(path); }
  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override {
    return files_->List(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_->SyncDirectory(path);
  }

 protected:
  FileSystem& files() const { return *files_; }

 private:
  const std::unique_ptr<FileSystem> files_;
};

// One whose files ask before they do something. Calls come from any thread.
class WatchedFiles : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;

  absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) override {
    if (absl::Status may = MayCreate(); !may.ok()) return may;
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
  virtual absl::Status MayCreate() { return absl::OkStatus(); }
  virtual absl::Status MayWrite() { return absl::OkStatus(); }
  virtual void BeforeRead() {}
  virtual void AfterRead(std::span<const StoredFile::Piece> /*pieces*/) {}

  class Output final : public OutputFile {
   public:
    Output(WatchedFiles* owner, std::unique_ptr<OutputFile> file)
        : owner_(owner), file_(std::move(file)) {}
    absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
      if (absl::Status may = owner_->MayWrite(); !may.ok()) return may;
      return file_->Write(offset, bytes);
    }
    absl::Status Sync() override { return file_->Sync(); }

   private:
    WatchedFiles* const owner_;
    const std::unique_ptr<OutputFile> file_;
  };
  class Stored final : public StoredFile {
   public:
    Stored(WatchedFiles* owner, std::unique_ptr<StoredFile> file)
        : owner_(owner), file_(std::move(file)) {}
    int64_t size_bytes() const override { return file_->size_bytes(); }
    absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
      owner_->BeforeRead();
      const absl::Status read = file_->Read(offset, pieces);
      owner_->AfterRead(pieces);
      return read;
    }

   private:
    WatchedFiles* const owner_;
    const std::unique_ptr<StoredFile> file_;
  };
};

}  // namespace folio::test
