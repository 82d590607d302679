#include "engine/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

absl::Status FileError(int error, const std::string& action, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
}

}  // namespace

InputFile::InputFile(std::string path, int fd, uint64_t size_bytes)
    : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, "open", path);
  InputFile file(path, fd, 0);
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  file.size_bytes_ = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::Status InputFile::Read(uint64_t offset, size_t num_bytes, void* out) const {
  auto* to = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t read = pread(fd_, to, num_bytes, static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return FileError(errno, "read", path_);
    if (read == 0) {
      return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset, ", it had ",
                                              size_bytes_,
                                              " when it was opened; copy it here again"));
    }
    to += read;
    offset += static_cast<uint64_t>(read);
    num_bytes -= static_cast<size_t>(read);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  FOLIO_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.size_bytes(), " bytes, limit ", max_bytes));
  }
  std::string text(file.size_bytes(), '\0');
  FOLIO_RETURN_IF_ERROR(file.Read(0, text.size(), text.data()));
  return text;
}

}  // namespace folio
