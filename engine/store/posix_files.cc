#include "engine/store/posix_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr char kLockFile[] = "lock";
constexpr int kFileMode = 0600;
constexpr int kDirectoryMode = 0700;
// Of one system call.
constexpr size_t kMaxPieces = 256;
// A read of so many bytes is one of many in sequence: what its file has is more than the system
// would keep, and copying it takes the processor from whoever works on it. So it goes past the
// system's cache, unless that has some of it or does not say.
constexpr size_t kLargeRead = 256 << 10;
// Where a read past the system's cache may begin and end.
constexpr uint64_t kBlock = 4096;

// cachestat(2), since Linux 6.5; the C library does not know it yet.
constexpr long kCacheStat = 451;
struct CacheRange {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};
struct CachedPages {
  uint64_t cached = 0;
  uint64_t others[4] = {};
};

absl::Status Failed(int error, const std::string& action, const std::string& path) {
  absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
  // Not DATA_LOSS, which is what was read and found wrong.
  return error == EIO ? absl::UnavailableError(status.message()) : status;
}

// Move-only owner of a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixOutputFile final : public OutputFile {
 public:
  PosixOutputFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed(errno, "write", path_);
      offset += written;
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return ::fdatasync(fd_.get()) == 0 ? absl::OkStatus() : Failed(errno, "sync", path_);
  }
  int descriptor() const { return fd_.get(); }

 private:
  const std::string path_;
  const Descriptor fd_;
};

class PosixStoredFile final : public StoredFile {
 public:
  PosixStoredFile(std::string path, Descriptor fd, int64_t size_bytes)
      : path_(std::move(path)), fd_(std::move(fd)), size_bytes_(size_bytes) {}

  int64_t size_bytes() const override { return size_bytes_; }

  absl::Status Read(int64_t offset, std::span<const Piece> pieces) const override {
    while (!pieces.empty()) {
      const auto some = pieces.first(std::min(pieces.size(), kMaxPieces));
      FOLIO_RETURN_IF_ERROR(ReadSome(&offset, some));
      pieces = pieces.subspan(some.size());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadSome(int64_t* offset, std::span<const Piece> pieces) const {
    std::array<iovec, kMaxPieces> vectors;
    size_t end = 0;
    for (const Piece& piece : pieces) vectors[end++] = {piece.to, piece.num_bytes};
    for (size_t begin = 0; begin < end;) {
      const ssize_t count = ReadOnce(std::span(vectors).subspan(begin, end - begin), *offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed(errno, "read", path_);
      auto left = static_cast<size_t>(count);
      *offset += count;
      while (begin < end && left >= vectors[begin].iov_len) left -= vectors[begin++].iov_len;
      if (begin == end) break;
      if (count == 0) {
        return absl::DataLossError(absl::StrCat(path_, " ends at byte ", *offset));
      }
      vectors[begin].iov_base = static_cast<std::byte*>(vectors[begin].iov_base) + left;
      vectors[begin].iov_len -= left;
    }
    return absl::OkStatus();
  }

  // As preadv.
  ssize_t ReadOnce(std::span<const iovec> vectors, int64_t offset) const {
    if (GoesPastCache(vectors, offset)) {
      const ssize_t count = ReadPastCache(vectors, offset);
      if (count >= 0) return count;
    }
    return ::preadv(fd_.get(), vectors.data(), static_cast<int>(vectors.size()), offset);
  }

  bool GoesPastCache(std::span<const iovec> vectors, int64_t offset) const {
    uint64_t num_bytes = 0;
    uint64_t bits = static_cast<uint64_t>(offset);
    for (const iovec& vector : vectors) {
      num_bytes += vector.iov_len;
      bits |= vector.iov_len | reinterpret_cast<uintptr_t>(vector.iov_base);
    }
    if (num_bytes < kLargeRead || bits % kBlock != 0) return false;
    CacheRange range = {static_cast<uint64_t>(offset), num_bytes};
    CachedPages pages;
    return ::syscall(kCacheStat, fd_.get(), &range, &pages, 0) == 0 && pages.cached == 0;
  }

  // Negative where the system does not do that, as well. The descriptor does not stay: a text has
  // many files.
  ssize_t ReadPastCache(std::span<const iovec> vectors, int64_t offset) const {
    const std::string name = absl::StrCat("/proc/self/fd/", fd_.get());
    const Descriptor direct(::open(name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!direct.valid()) return -1;
    return ::preadv(direct.get(), vectors.data(), static_cast<int>(vectors.size()), offset);
  }

  const std::string path_;
  const Descriptor fd_;
  const int64_t size_bytes_;
};

class PosixFiles final : public FileSystem {
 public:
  PosixFiles(Descriptor root, Descriptor lock) : root_(std::move(root)), lock_(std::move(lock)) {}

  absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path) override {
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    Descriptor fd(::openat(place.directory.get(), place.name.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (!fd.valid()) return Failed(errno, "create", path);
    return std::make_unique<PosixOutputFile>(path, std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<StoredFile>> Open(const std::string& path) override {
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    FOLIO_ASSIGN_OR_RETURN(RegularFile file, OpenRegular(place, path, O_RDONLY));
    return std::make_unique<PosixStoredFile>(path, std::move(file.fd), file.size_bytes);
  }

  absl::StatusOr<std::unique_ptr<OutputFile>> Reopen(const std::string& path,
                                                     int64_t size_bytes) override {
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    FOLIO_ASSIGN_OR_RETURN(RegularFile file, OpenRegular(place, path, O_WRONLY));
    if (file.size_bytes < size_bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", file.size_bytes, " bytes instead of ", size_bytes));
    }
    if (::ftruncate(file.fd.get(), size_bytes) != 0) return Failed(errno, "cut", path);
    return std::make_unique<PosixOutputFile>(path, std::move(file.fd));
  }

  absl::Status Link(const OutputFile& file, const std::string& path) override {
    const auto* const output = dynamic_cast<const PosixOutputFile*>(&file);
    if (output == nullptr) return FileSystem::Link(file, path);
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    // By its descriptor: the name may be below another directory, and a link by now.
    const std::string open_file = absl::StrCat("/proc/self/fd/", output->descriptor());
    if (::linkat(AT_FDCWD, open_file.c_str(), place.directory.get(), place.name.c_str(),
                 AT_SYMLINK_FOLLOW) == 0) {
      return absl::OkStatus();
    }
    return Failed(errno, "give a file the name", path);
  }

  absl::Status MakeDirectory(const std::string& path) override {
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (::mkdirat(place.directory.get(), place.name.c_str(), kDirectoryMode) == 0 ||
        errno == EEXIST) {
      return absl::OkStatus();
    }
    return Failed(errno, "make the directory", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    FOLIO_ASSIGN_OR_RETURN(const Place source, Find(from));
    FOLIO_ASSIGN_OR_RETURN(const Place target, Find(to));
    if (::renameat(source.directory.get(), source.name.c_str(), target.directory.get(),
                   target.name.c_str()) == 0) {
      return absl::OkStatus();
    }
    return Failed(errno, absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status Remove(const std::string& path) override {
    auto place = Find(path);
    if (absl::IsNotFound(place.status())) return absl::OkStatus();
    if (!place.ok()) return place.status();
    return RemoveAt(place->directory.get(), place->name, path);
  }

  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override {
    FOLIO_ASSIGN_OR_RETURN(Descriptor directory, OpenDirectory(path));
    std::vector<DirectoryEntry> entries;
    FOLIO_RETURN_IF_ERROR(ListAt(std::move(directory), path, &entries));
    return entries;
  }

  absl::Status SyncDirectory(const std::string& path) override {
    FOLIO_ASSIGN_OR_RETURN(const Descriptor directory, OpenDirectory(path));
    return ::fsync(directory.get()) == 0 ? absl::OkStatus() : Failed(errno, "sync", path);
  }

 private:
  struct Place {
    Descriptor directory;
    std::string name;
  };

  struct RegularFile {
    Descriptor fd;
    int64_t size_bytes;
  };

  static absl::StatusOr<RegularFile> OpenRegular(const Place& place, const std::string& path,
                                                 int mode) {
    // O_NONBLOCK: opening a FIFO must fail below, not wait for its other end.
    Descriptor fd(::openat(place.directory.get(), place.name.c_str(),
                           mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const int error = errno;
    struct stat info {};
    if (fd.valid() ? ::fstat(fd.get(), &info) == 0 && !S_ISREG(info.st_mode)
                   : error == ELOOP || error == EISDIR || error == ENXIO) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
    }
    if (!fd.valid()) return Failed(error, "open", path);
    return RegularFile{std::move(fd), info.st_size};
  }

  static absl::StatusOr<std::vector<std::string>> NamesOf(const std::string& path) {
    std::vector<std::string> names = absl::StrSplit(path, '/');
    for (const std::string& name : names) {
      if (!name.empty() && name != "." && name != ".." && name.find('\0') == name.npos) continue;
      return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no path of a store"));
    }
    return names;
  }

  static absl::StatusOr<Descriptor> OpenBelow(int directory, const std::string& name,
                                              const std::string& path) {
    Descriptor below(::openat(directory, name.empty() ? "." : name.c_str(),
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (below.valid()) return below;
    if (errno == ELOOP || errno == ENOTDIR) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " goes through '", name, "', which is not a directory"));
    }
    return Failed(errno, "open the directory of", path);
  }

  // Goes from name to name, so that no link is followed. The last name is not looked at.
  absl::StatusOr<Place> Find(const std::string& path) const {
    FOLIO_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(path));
    FOLIO_ASSIGN_OR_RETURN(Descriptor directory, OpenBelow(root_.get(), "", path));
    for (size_t n = 0; n + 1 < names.size(); ++n) {
      FOLIO_ASSIGN_OR_RETURN(directory, OpenBelow(directory.get(), names[n], path));
    }
    return Place{std::move(directory), names.back()};
  }

  // The empty path is the root.
  absl::StatusOr<Descriptor> OpenDirectory(const std::string& path) const {
    if (path.empty()) return OpenBelow(root_.get(), "", path);
    FOLIO_ASSIGN_OR_RETURN(const Place place, Find(path));
    return OpenBelow(place.directory.get(), place.name, path);
  }

  static absl::Status ListAt(Descriptor directory, const std::string& path,
                             std::vector<DirectoryEntry>* entries) {
    DIR* const stream = ::fdopendir(directory.get());
    if (stream == nullptr) return Failed(errno, "list", path);
    directory.Release();  // the stream's now
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat info {};
      const bool is_known =
          ::fstatat(::dirfd(stream), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
      entries->push_back({name, is_known && S_ISDIR(info.st_mode),
                          is_known && S_ISREG(info.st_mode) ? int64_t{info.st_size} : 0});
      errno = 0;
    }
    const int error = errno;
    ::closedir(stream);
    std::sort(entries->begin(), entries->end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return error == 0 ? absl::OkStatus() : Failed(error, "list", path);
  }

  static absl::Status RemoveAt(int directory, const std::string& name, const std::string& path) {
    if (::unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
    if (errno != EISDIR && errno != EPERM) return Failed(errno, "remove", path);
    FOLIO_ASSIGN_OR_RETURN(Descriptor below, OpenBelow(directory, name, path));
    Descriptor listed(::dup(below.get()));
    std::vector<DirectoryEntry> entries;
    FOLIO_RETURN_IF_ERROR(ListAt(std::move(listed), path, &entries));
    for (const DirectoryEntry& entry : entries) {
      FOLIO_RETURN_IF_ERROR(RemoveAt(below.get(), entry.name, absl::StrCat(path, "/", entry.name)));
    }
    if (::unlinkat(directory, name.c_str(), AT_REMOVEDIR) == 0) return absl::OkStatus();
    return Failed(errno, "remove", path);
  }

  const Descriptor root_;
  const Descriptor lock_;
};

// There already: OK. A new one is durable.
absl::Status MakeRoot(const std::string& directory) {
  if (::mkdir(directory.c_str(), kDirectoryMode) != 0) {
    return errno == EEXIST ? absl::OkStatus() : Failed(errno, "make the directory", directory);
  }
  const Descriptor parent(
      ::open(absl::StrCat(directory, "/..").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.valid() && ::fsync(parent.get()) == 0) return absl::OkStatus();
  return Failed(errno, "sync the directory of", directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> OpenPosixFiles(const std::string& directory) {
  FOLIO_RETURN_IF_ERROR(MakeRoot(directory));
  Descriptor root(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid() && errno == ENOTDIR) {
    return absl::FailedPreconditionError(absl::StrCat(directory, " is not a directory"));
  }
  if (!root.valid()) return Failed(errno, "open", directory);
  Descriptor lock(
      ::openat(root.get(), kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!lock.valid()) return Failed(errno, "write to", directory);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is in use by another process; give each server its own"));
  }
  return std::make_unique<PosixFiles>(std::move(root), std::move(lock));
}

}  // namespace folio
