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

  virtual void Copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void Write(std::byte* to, const void* host, int64_t bytes) = 0;
  // The values as the host can read them, valid until the next call.
  virtual std::span<const float> Read(const float* from, int64_t count) = 0;
};

// The memory of this process. Stateless.
Memory* HostMemory();

// Floats in some memory, freed with the object. Move-only.
class Buffer {
 public:
  Buffer() = default;
  // `count` zeros. Errors: of Memory::Allocate.
  static absl::StatusOr<Buffer> Create(Memory* memory, int64_t count);
  // A copy of host values.
  static absl::StatusOr<Buffer> CopyOf(Memory* memory, std::span<const float> values);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  absl::StatusOr<Buffer> Clone() const;

  float* data() const { return data_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  operator std::span<const float>() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  Memory* memory_ = nullptr;
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace folio
