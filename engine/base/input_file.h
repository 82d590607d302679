#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace folio {

// A regular file that is read piece by piece. It is not mapped: a mapping of a file that somebody
// cuts answers with SIGBUS, a read with an error. Move-only; const members are safe for concurrent
// use.
class InputFile {
 public:
  // Errors: NOT_FOUND when there is no such file, FAILED_PRECONDITION when it is not a regular
  // file, PERMISSION_DENIED when it cannot be read.
  static absl::StatusOr<InputFile> Open(const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  // When it was opened.
  uint64_t size_bytes() const { return size_bytes_; }

  // Reads `num_bytes` bytes from `offset` on. Errors: DATA_LOSS when the file ends before them.
  absl::Status Read(uint64_t offset, size_t num_bytes, void* out) const;

 private:
  InputFile(std::string path, int fd, uint64_t size_bytes);

  std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
};

// Reads a whole file of at most `max_bytes`.
// Errors: those of InputFile; INVALID_ARGUMENT when it is larger.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace folio
