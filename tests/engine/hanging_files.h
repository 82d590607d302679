#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "tests/engine/forwarding_files.h"

namespace folio::test {

// Which reads and renames hang. Thread-safe; files keep it.
class Hang {
 public:
  // Reads of files, and renames to files, whose path contains `part` hang from now on.
  void Begin(const std::string& part) {
    MutexLock lock(&mutex_);
    part_ = part;
    changed_.NotifyAll();
  }
  // They go on.
  void End() { Begin(""); }
  void Pass(const std::string& path) {
    MutexLock lock(&mutex_);
    if (part_.empty() || path.find(part_) == path.npos) return;
    ++num_hanging_;
    changed_.NotifyAll();
    while (!part_.empty()) changed_.Wait(&mutex_);
    --num_hanging_;
  }
  void WaitForReads(int count) {
    MutexLock lock(&mutex_);
    while (num_hanging_ < count) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string part_ FOLIO_GUARDED_BY(mutex_);
  int num_hanging_ FOLIO_GUARDED_BY(mutex_) = 0;
};

// Files of another file system whose reads and renames hang when told.
class HangingFiles final : public ForwardingFiles {
 public:
  HangingFiles(std::unique_ptr<FileSystem> files, std::shared_ptr<Hang> hang)
      : ForwardingFiles(std::move(files)), hang_(std::move(hang)) {}

  absl::Status Link(const OutputFile& file, const std::string& path) override {
    return files().Link(file, path);
  }
  absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) override {
    auto file = files().Open(path);
    if (!file.ok()) return file;
    return std::make_unique<File>(*std::move(file), hang_, path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    hang_->Pass(to);
    return files().Rename(from, to);
  }

 private:
  class File final : public StoredFile {
   public:
    File(std::unique_ptr<StoredFile> file, std::shared_ptr<Hang> hang, std::string path)
        : file_(std::move(file)), hang_(std::move(hang)), path_(std::move(path)) {}
    int64_t size_bytes() const override { return file_->size_bytes(); }
    absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
      hang_->Pass(path_);
      return file_->Read(offset, pieces);
    }

   private:
    const std::unique_ptr<StoredFile> file_;
    const std::shared_ptr<Hang> hang_;
    const std::string path_;
  };

  const std::shared_ptr<Hang> hang_;
};

}  // namespace folio::test
