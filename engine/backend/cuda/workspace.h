#pragma once

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/cuda_memory.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {

// Device memory that grows to what is asked for and stays. Kernels that a graph repeats hold its
// address, so growth is noted with the memory.
class Workspace {
 public:
  explicit Workspace(CudaMemory* memory) : memory_(memory) {}

  // Grows to `count` values of T. Errors: RESOURCE_EXHAUSTED, and it is as large as it was.
  template <typename T>
  absl::Status Reserve(int64_t count) {
    const int64_t before = buffer_.num_bytes();
    const int64_t wanted = count * static_cast<int64_t>(sizeof(T));
    if (before >= wanted) return absl::OkStatus();
    // The device may not have room for both.
    buffer_ = Buffer();
    memory_->NoteMove();
    absl::StatusOr<Buffer> grown = Buffer::Create(memory_, wanted);
    if (grown.ok()) {
      buffer_ = *std::move(grown);
      return absl::OkStatus();
    }
    if (before > 0) {
      FOLIO_ASSIGN_OR_RETURN(buffer_, Buffer::Create(memory_, before));
    }
    return grown.status();
  }

  // nullptr if there is no memory; the error stays with the memory's status.
  template <typename T>
  T* Get(int64_t count) {
    if (!Reserve<T>(count).ok()) {
      memory_->Note("no memory for the workspace; lower --kv-bytes");
      return nullptr;
    }
    return buffer_.as<T>();
  }
  int64_t bytes() const { return buffer_.num_bytes(); }

 private:
  CudaMemory* const memory_;
  Buffer buffer_;
};

// Memory of the host that the device copies from and to by itself; grows likewise.
class Staging {
 public:
  explicit Staging(CudaMemory* memory) : memory_(memory) {}
  ~Staging() { FreeHost(data_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // REQUIRES: no copy from or to it is under way. Errors: RESOURCE_EXHAUSTED, and it is as large as
  // it was.
  absl::Status Reserve(int64_t bytes) {
    if (size_ >= bytes) return absl::OkStatus();
    void* grown = nullptr;
    if (Error error = AllocateHost(bytes, &grown)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot allocate ", bytes, " bytes of pinned host memory: ", error));
    }
    FreeHost(data_);
    data_ = grown;
    size_ = bytes;
    return absl::OkStatus();
  }

  // nullptr if there is no memory; the error stays with the memory's status.
  std::byte* Get(int64_t bytes) {
    if (!Reserve(bytes).ok()) {
      memory_->Note("no pinned memory of the host");
      return nullptr;
    }
    return static_cast<std::byte*>(data_);
  }
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }

 private:
  CudaMemory* const memory_;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace folio::cuda
