#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace folio {

// A regular file mapped read-only into memory. Move-only; the mapping ends with the object.
// Const members are safe for concurrent use. The file must not be cut while it is mapped: the
// kernel answers a read behind the new end with SIGBUS.
class MappedFile {
 public:
  // Errors: NOT_FOUND when there is no such file, FAILED_PRECONDITION when it is not a regular
  // file or cannot be mapped, PERMISSION_DENIED when it cannot be read.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::string_view bytes() const { return {reinterpret_cast<const char*>(data_), size_bytes_}; }

  // Tells the kernel that this process no longer needs the pages which touch the range. Reading
  // them again is allowed and brings them back from the file.
  // Errors: OUT_OF_RANGE when the range is not inside the file.
  absl::Status ReleasePages(size_t offset, size_t num_bytes) const;

 private:
  MappedFile(std::string path, const uint8_t* data, size_t size_bytes);
  void Unmap();

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// Reads a whole file of at most `max_bytes`.
// Errors: those of MappedFile::Open; INVALID_ARGUMENT when it is larger.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace folio
