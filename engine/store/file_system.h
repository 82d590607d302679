#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace folio {

// A file that is being written. One thread. Destroying it closes it; nothing is durable but what
// was synced before.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  // Writes all of `bytes` at `offset`. Errors: RESOURCE_EXHAUSTED (no space, quota), else as the
  // system says; the file then holds any part of them.
  virtual absl::Status Write(int64_t offset, std::span<const std::byte> bytes) = 0;
  // Durable when it returns. After an error the file is lost: what reached the disk is unknown.
  virtual absl::Status Sync() = 0;
};

// A file that is complete. Thread-safe.
class StoredFile {
 public:
  struct Piece {
    std::byte* to = nullptr;
    size_t num_bytes = 0;
  };
  virtual ~StoredFile() = default;
  // When it was opened.
  virtual int64_t size_bytes() const = 0;
  // Reads the pieces one after the other from `offset` on, in one operation where the system can.
  // Errors: DATA_LOSS when the file ends before them, else as the system says.
  virtual absl::Status Read(int64_t offset, std::span<const Piece> pieces) const = 0;
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
  int64_t size_bytes = 0;  // of a regular file

  bool operator==(const DirectoryEntry&) const = default;
};

// The directory of a store. Paths are names joined by '/', below it: a path that leaves it, or goes
// through a symbolic link, is refused with INVALID_ARGUMENT or FAILED_PRECONDITION. Thread-safe.
// What the system refuses keeps its code: RESOURCE_EXHAUSTED (no space, quota), PERMISSION_DENIED
// or FAILED_PRECONDITION (read-only), UNAVAILABLE (the device fails). Tests have one whose
// operations fail when told.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Errors: ALREADY_EXISTS, NOT_FOUND (its directory).
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) = 0;
  // A file that is there, cut to its first `size_bytes` bytes. Errors: NOT_FOUND, DATA_LOSS if it
  // is shorter, FAILED_PRECONDITION (no regular file).
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> Reopen(const std::string& path,
                                                             int64_t size_bytes) = 0;
  // Gives a file another name, which is here whatever directory it was created in. Errors:
  // ALREADY_EXISTS, NOT_FOUND (the directory of `path`), UNIMPLEMENTED or as the system says where
  // it cannot: of another device, say. Who gets one copies the file instead.
  virtual absl::Status Link(const OutputFile& file, const std::string& path);
  // Errors: NOT_FOUND, FAILED_PRECONDITION (no regular file).
  virtual absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) = 0;
  // There already: OK.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // Replaces what is there. Durable after SyncDirectory of both directories.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Of a file, or of a directory with everything in it. Not there: OK.
  virtual absl::Status Remove(const std::string& path) = 0;
  // By name. Errors: NOT_FOUND.
  virtual absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) = 0;
  // Names in a directory are durable when it returns.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
};

inline absl::Status FileSystem::Link(const OutputFile& /*file*/, const std::string& path) {
  return absl::UnimplementedError(path + " cannot be another name of a file");
}

}  // namespace folio
