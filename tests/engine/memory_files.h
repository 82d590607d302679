#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/store/file_system.h"

namespace folio::test {

// Files in memory that can fail, and lose what was not synced, as after a power cut. Thread-safe
// but for set_fault, LosePower and content.
class MemoryFiles final : public FileSystem {
 public:
  // Asked before every operation, with its name and path: not OK is what the operation answers.
  using Fault = std::function<absl::Status(const std::string& operation, const std::string& path)>;

  MemoryFiles();
  ~MemoryFiles() override;
  void set_fault(Fault fault) { fault_ = std::move(fault); }

  // Only what is durable is left: synced bytes, under names whose directory was synced.
  void LosePower() { LosePower(nullptr); }
  // What is not durable is there or not, as `random` says: each sector of a file, its size, each
  // name of a directory; a rename from one directory to another as one.
  void LosePower(std::mt19937_64* random);

  // Null: no such file.
  std::string* content(const std::string& path);
  // Paths of all files, in order.
  std::vector<std::string> paths() const;
  // Of all files below a directory.
  int64_t BytesBelow(const std::string& directory) const;
  int64_t num_operations() const { return num_operations_; }

  absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<OutputFile>> Reopen(const std::string& path,
                                                     int64_t size_bytes) override;
  // Of a file of any MemoryFiles.
  absl::Status Link(const OutputFile& file, const std::string& path) override;
  absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;

 private:
  struct Node;
  struct Move;
  class Output;
  class Stored;
  using NodePtr = std::shared_ptr<Node>;

  absl::Status Begin(const std::string& operation, const std::string& path) FOLIO_REQUIRES(mu_);
  NodePtr Find(const std::string& path) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<NodePtr> DirectoryOf(const std::string& path) const;
  static void Forget(const NodePtr& node, std::mt19937_64* random);

  mutable Mutex mu_;
  const NodePtr root_;
  std::vector<Move> moves_;  // from one directory to another, not durable
  Fault fault_;
  int64_t num_operations_ = 0;
};

}  // namespace folio::test
