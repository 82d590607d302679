#include "engine/base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/memory_bounds.h"
#include "engine/base/numa.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Of x86-64, and of arm64 with system pages of 4 KiB.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Address space, null if there is none. `alignment` is a power of two; pages are aligned anyway.
std::byte* Reserve(int64_t bytes, int64_t alignment) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t spare = std::max<int64_t>(alignment - page, 0);
  bytes = (bytes + page - 1) / page * page;
  void* const mapped = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const int64_t before = -reinterpret_cast<intptr_t>(begin) & (alignment - 1);
  if (before > 0) munmap(begin, before);
  if (before < spare) munmap(begin + before + bytes, spare - before);
  return begin + before;
}

class ProcessMemory final : public Memory {
 public:
  int64_t available_bytes() const override { return ReadMemoryBounds().available.bytes; }
  bool commits_at_once() const override { return false; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    std::byte* const base = Reserve(bytes, bytes < kHugePageBytes ? 1 : kHugePageBytes);
    if (base == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot reserve ", bytes, " bytes of address space"));
    }
    // A step reads slices that lie far apart: fewer TLB misses. A refusal costs speed only.
    madvise(base, bytes, MADV_HUGEPAGE);
    InterleaveOverNodes(base, bytes);
    return base;
  }
  void Free(std::byte* base, int64_t bytes) override { munmap(base, bytes); }
  void Discard(std::byte* at, int64_t bytes) override { madvise(at, bytes, MADV_DONTNEED); }
  int64_t discard_bytes() const override { return kHugePageBytes; }

  void Copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void Write(std::byte* to, const void* host, int64_t bytes) override {
    std::memcpy(to, host, bytes);
  }
  void ReadPieces(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
    }
  }
  std::span<const float> Read(const float* from, int64_t count) override {
    return {from, static_cast<size_t>(count)};
  }
};

}  // namespace

Memory* HostMemory() {
  static ProcessMemory memory;
  return &memory;
}

absl::StatusOr<Buffer> Buffer::Create(Memory* memory, int64_t num_bytes) {
  Buffer buffer;
  if (num_bytes == 0) return buffer;
  FOLIO_ASSIGN_OR_RETURN(buffer.data_, memory->Allocate(num_bytes));
  buffer.memory_ = memory;
  buffer.num_bytes_ = num_bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) memory_->Free(data_, num_bytes_);
}

absl::StatusOr<Buffer> Buffer::Clone() const {
  if (empty()) return Buffer();
  FOLIO_ASSIGN_OR_RETURN(Buffer copy, Create(memory_, num_bytes_));
  memory_->Copy(copy.data_, data_, num_bytes_);
  return copy;
}

}  // namespace folio
