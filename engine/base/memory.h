#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

namespace folio {

// Where a backend keeps what its verbs read and write: the host's memory, or a device's. Engine
// thread only; copies are ordered with the verbs of the backend.
class Memory {
 public:
  virtual ~Memory() = default;

  // Bytes that can be allocated now.
  virtual int64_t available_bytes() const = 0;
  // Whether what is allocated is taken at once; the host takes it by the first touch.
  virtual bool commits_at_once() const = 0;

  // Zeroed memory, aligned to 256 bytes.
  // Errors: RESOURCE_EXHAUSTED with the bytes.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* base, int64_t bytes) = 0;
  // What lies there is no longer needed; the host takes the pages back.
  virtual void Discard(std::byte* at, int64_t bytes) = 0;
  // What is allocated counts as blocks of so many bytes. Where only part of one is discarded, the
  // host has no huge page for what is written there next, which is then slower to read.
  virtual int64_t discard_bytes() const = 0;

  virtual void Copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void Write(std::byte* to, const void* host, int64_t bytes) = 0;
  // Copies to the host; all are there when this returns.
  struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };
  virtual void ReadPieces(std::span<const Piece> pieces) = 0;
  // The values as the host can read them, valid until the next call.
  virtual std::span<const float> Read(const float* from, int64_t count) = 0;
};

// The memory of this process. Stateless.
Memory* HostMemory();

// Bytes in some memory, freed with the object. Move-only.
class Buffer {
 public:
  Buffer() = default;
  // Zeros. Errors: of Memory::Allocate.
  static absl::StatusOr<Buffer> Create(Memory* memory, int64_t num_bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  absl::StatusOr<Buffer> Clone() const;

  std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  bool empty() const { return num_bytes_ == 0; }
  // Where its values lie; the host can read them only if the memory is the host's.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  Memory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// A buffer of values of one type.
template <typename T>
class BufferOf {
 public:
  BufferOf() = default;
  // `count` zeros. Errors: of Memory::Allocate.
  static absl::StatusOr<BufferOf> Create(Memory* memory, int64_t count) {
    absl::StatusOr<Buffer> bytes = Buffer::Create(memory, count * kValueBytes);
    if (!bytes.ok()) return bytes.status();
    return BufferOf(*std::move(bytes));
  }
  // A copy of host values.
  static absl::StatusOr<BufferOf> CopyOf(Memory* memory, std::span<const T> values) {
    absl::StatusOr<BufferOf> copy = Create(memory, static_cast<int64_t>(values.size()));
    if (!copy.ok() || values.empty()) return copy;
    memory->Write(copy->bytes_.data(), values.data(), copy->bytes_.num_bytes());
    return copy;
  }

  T* data() const { return bytes_.as<T>(); }
  int64_t size() const { return bytes_.num_bytes() / kValueBytes; }
  bool empty() const { return bytes_.empty(); }
  operator std::span<const T>() const { return {data(), static_cast<size_t>(size())}; }

 private:
  static constexpr int64_t kValueBytes = sizeof(T);

  explicit BufferOf(Buffer bytes) : bytes_(std::move(bytes)) {}

  Buffer bytes_;
};

}  // namespace folio
