#pragma once

#include <utility>

#include "engine/backend/cuda/cuda_memory.h"

namespace folio::cuda {

// Device memory that grows to what is asked for and stays. Kernels that a graph repeats hold its
// address, so growth is noted with the memory.
class Workspace {
 public:
  explicit Workspace(CudaMemory* memory) : memory_(memory) {}

  // nullptr if there is no memory; the error stays with the memory's status.
  template <typename T>
  T* Get(int64_t count) {
    const auto floats =
        (count * static_cast<int64_t>(sizeof(T)) + 3) / static_cast<int64_t>(sizeof(float));
    if (buffer_.size() < floats) {
      buffer_ = Buffer();
      memory_->NoteMove();
      absl::StatusOr<Buffer> grown = Buffer::Create(memory_, floats);
      if (!grown.ok()) {
        memory_->Note("no memory for the workspace; lower --kv-bytes");
        return nullptr;
      }
      buffer_ = *std::move(grown);
    }
    return reinterpret_cast<T*>(buffer_.data());
  }
  int64_t bytes() const { return buffer_.size() * static_cast<int64_t>(sizeof(float)); }

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

  std::byte* Get(int64_t bytes) {
    if (size_ < bytes) {
      FreeHost(data_);
      data_ = nullptr;
      size_ = 0;
      memory_->Note(AllocateHost(2 * bytes, &data_));
      if (data_ == nullptr) return nullptr;
      size_ = 2 * bytes;
    }
    return static_cast<std::byte*>(data_);
  }

 private:
  CudaMemory* const memory_;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace folio::cuda
