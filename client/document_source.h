// Where the bytes of an upload come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace folio::client {

// Random access to a document, so that a broken upload goes on where it stopped. Const calls may
// run concurrently.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  virtual uint64_t size_bytes() const = 0;
  // Exactly the bytes [offset, min(offset + max_bytes, size_bytes())).
  // Errors: DATA_LOSS if the source became shorter, UNKNOWN if it cannot be read.
  virtual absl::StatusOr<std::string> Read(uint64_t offset, size_t max_bytes) const = 0;
};

class TextSource final : public DocumentSource {
 public:
  explicit TextSource(std::string text) : text_(std::move(text)) {}
  uint64_t size_bytes() const override { return text_.size(); }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t max_bytes) const override;

 private:
  const std::string text_;
};

// A regular file, kept open. Its size is fixed when it is opened.
class FileSource final : public DocumentSource {
 public:
  // Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file), UNKNOWN.
  static absl::StatusOr<std::unique_ptr<FileSource>> Open(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size_bytes() const override { return size_bytes_; }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t max_bytes) const override;

 private:
  FileSource(std::string path, int fd, uint64_t size_bytes)
      : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes) {}

  const std::string path_;
  const int fd_;
  const uint64_t size_bytes_;
};

}  // namespace folio::client
