#pragma once

#include <memory>
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

}  // namespace folio::test
