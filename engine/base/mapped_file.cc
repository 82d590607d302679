#include "engine/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

absl::Status FileError(int error, const std::string& action, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
}

}  // namespace

MappedFile::MappedFile(std::string path, const uint8_t* data, size_t size_bytes)
    : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_bytes_);
  data_ = nullptr;
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, "open", path);
  const absl::Cleanup close_fd = [fd] { close(fd); };

  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  const auto size_bytes = static_cast<size_t>(info.st_size);
  if (size_bytes == 0) return MappedFile(path, nullptr, 0);
  void* data = mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return FileError(errno, "map", path);
  return MappedFile(path, static_cast<const uint8_t*>(data), size_bytes);
}

absl::Status MappedFile::ReleasePages(size_t offset, size_t num_bytes) const {
  if (offset > size_bytes_ || num_bytes > size_bytes_ - offset) {
    return absl::OutOfRangeError(absl::StrCat("release of bytes ", offset, "+", num_bytes, " of ",
                                              path_, ", which has ", size_bytes_));
  }
  if (num_bytes == 0) return absl::OkStatus();
  // Whole pages: a neighbour's page that goes with them costs one minor fault when it is read.
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page_bytes * page_bytes;
  auto* address = const_cast<uint8_t*>(data_ + begin);
  if (madvise(address, offset + num_bytes - begin, MADV_DONTNEED) != 0) {
    return FileError(errno, "release pages of", path_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  FOLIO_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.size_bytes(), " bytes, limit ", max_bytes));
  }
  return std::string(file.bytes());
}

}  // namespace folio
