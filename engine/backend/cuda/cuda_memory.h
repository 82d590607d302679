#pragma once

#include <vector>

#include "engine/backend/cuda/device.h"
#include "engine/base/memory.h"

namespace folio::cuda {

// Memory of one device, and the stream that all work of it runs on. The first error of a call
// stays: every later step reports it.
class CudaMemory final : public Memory {
 public:
  // Errors: FAILED_PRECONDITION without a driver or device, INTERNAL.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Open(int ordinal);
  ~CudaMemory() override;

  int64_t available_bytes() const override { return available_bytes_; }
  bool commits_at_once() const override { return true; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override;
  void Free(std::byte* base, int64_t bytes) override;
  void Discard(std::byte*, int64_t) override {}
  int64_t discard_bytes() const override { return int64_t{2} << 20; }
  void Copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void Write(std::byte* to, const void* host, int64_t bytes) override;
  void ReadPieces(std::span<const Piece> pieces) override;
  std::span<const float> Read(const float* from, int64_t count) override;

  // From and to memory of AllocateHost, complete after Finish.
  void WriteAsync(void* to, const void* host, int64_t bytes);
  void ReadAsync(void* host, const void* from, int64_t bytes);
  // Waits for all work; notes what went wrong with it.
  void Finish();

  // Memory that kernels were told of lies elsewhere now.
  void NoteMove() { ++num_moves_; }
  int64_t num_moves() const { return num_moves_; }
  // Keeps the first error.
  void Note(Error error);
  // The same of an error that work on the device may have made: `verb` noticed it, and is at fault
  // if every launch is waited for.
  void NoteIn(const char* verb, Error error);
  // After the launches of a verb.
  void CheckLaunches(const char* verb);

  // Between the two calls nothing runs, and errors are those of the recording alone.
  bool BeginRecording();
  // nullptr: the recording failed, and nothing has happened.
  Graph EndRecording();
  const absl::Status& status() const { return status_; }

  const Switches& switches() const { return switches_; }
  const DeviceInfo& info() const { return info_; }
  Stream stream() const { return stream_; }
  void* blas() const { return blas_; }

 private:
  CudaMemory() = default;

  Switches switches_;
  DeviceInfo info_;
  Stream stream_ = nullptr;
  void* blas_ = nullptr;
  int64_t available_bytes_ = 0;
  int64_t num_moves_ = 0;
  absl::Status status_;
  bool recording_ = false;
  bool recording_failed_ = false;
  std::vector<float> read_;
};

}  // namespace folio::cuda
