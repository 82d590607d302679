#include "engine/tools/raw_reads.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "engine/base/splitmix.h"

namespace folio {
namespace {

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

}  // namespace

RawReads::RawReads(const std::string& directory, const Options& options) : options_(options) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) Fail("cannot open a file of the cache");
    fdatasync(fd);  // what is not on disk yet is not forgotten
    if (options_.random) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    files_.push_back(fd);
    const auto size = static_cast<int64_t>(entry.file_size());
    const int64_t piece = options_.piece_bytes;
    for (int64_t at = 0; piece > 0 && at + piece <= size; at += piece) pieces_.push_back({fd, at});
  }
}

RawReads::~RawReads() {
  for (const int fd : files_) close(fd);
}

void RawReads::Forget() const {
  for (const int fd : files_) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

RawReads::Piece RawReads::PieceAt(int64_t n) const {
  const uint64_t at =
      options_.random ? SplitMix64(static_cast<uint64_t>(n) + 1) : static_cast<uint64_t>(n);
  return pieces_[at % pieces_.size()];
}

double RawReads::Seconds(int64_t num_bytes) {
  if (pieces_.empty()) return 0;
  const int64_t end = next_ + num_bytes / options_.piece_bytes;
  std::atomic<int64_t> next = next_;
  next_ = end;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  threads.reserve(options_.num_threads);
  for (int n = 0; n < options_.num_threads; ++n) {
    threads.emplace_back([&] {
      std::vector<char> room(static_cast<size_t>(options_.piece_bytes));
      for (int64_t at; (at = next.fetch_add(1)) < end;) {
        const Piece piece = PieceAt(at);
        if (pread(piece.fd, room.data(), room.size(), piece.offset) < 0) Fail("cannot read");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace folio
