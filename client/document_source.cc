#include "client/document_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace folio::client {

absl::StatusOr<std::string> TextSource::Read(uint64_t offset, size_t max_bytes) const {
  if (offset >= text_.size()) return std::string();
  return text_.substr(offset, max_bytes);
}

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return std::unique_ptr<FileSource>(new FileSource(path, fd, static_cast<uint64_t>(info.st_size)));
}

FileSource::~FileSource() { close(fd_); }

absl::StatusOr<std::string> FileSource::Read(uint64_t offset, size_t max_bytes) const {
  if (offset >= size_bytes_) return std::string();
  std::string data(std::min<uint64_t>(max_bytes, size_bytes_ - offset), '\0');
  size_t filled = 0;
  while (filled < data.size()) {
    const ssize_t got =
        pread(fd_, data.data() + filled, data.size() - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, " became shorter while it was read"));
    }
    filled += static_cast<size_t>(got);
  }
  return data;
}

}  // namespace folio::client
