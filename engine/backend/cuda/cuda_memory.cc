#include "engine/backend/cuda/cuda_memory.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/switches.h"
#include "engine/base/status_macros.h"

namespace folio::cuda {

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Open(int ordinal) {
  FOLIO_ASSIGN_OR_RETURN(const Switches switches, SwitchesOfEnvironment());
  Error why = nullptr;
  const int count = NumDevices(&why);
  if (ordinal >= count) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no CUDA device ", ordinal, ", of ", count, why == nullptr ? "" : ": ",
        why == nullptr ? "" : why, "; use --device cpu, or install a driver of R580 or newer"));
  }
  auto memory = std::unique_ptr<CudaMemory>(new CudaMemory);
  memory->switches_ = switches;
  memory->Note(OpenDevice(ordinal, switches, &memory->info_, &memory->stream_, &memory->blas_));
  if (!memory->status_.ok()) return memory->status_;
  memory->available_bytes_ = memory->info_.free_bytes;
  return memory;
}

CudaMemory::~CudaMemory() { CloseDevice(stream_, blas_); }

absl::StatusOr<std::byte*> CudaMemory::Allocate(int64_t bytes) {
  void* base = nullptr;
  if (Error error = cuda::Allocate(stream_, bytes, &base)) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes,
                                                     " bytes on the device, of which ",
                                                     available_bytes_, " seemed free: ", error));
  }
  Note(Zero(stream_, base, bytes));
  available_bytes_ -= bytes;
  return static_cast<std::byte*>(base);
}

void CudaMemory::Free(std::byte* base, int64_t bytes) {
  cuda::Free(stream_, base);
  available_bytes_ += bytes;
}

void CudaMemory::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  NoteIn("Copy", cuda::Copy(stream_, to, from, bytes));
}

void CudaMemory::Write(std::byte* to, const void* host, int64_t bytes) {
  WriteAsync(to, host, bytes);
}

void CudaMemory::ReadPieces(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) ReadAsync(piece.to, piece.from, piece.bytes);
  Finish();
}

std::span<const float> CudaMemory::Read(const float* from, int64_t count) {
  read_.resize(count);
  ReadAsync(read_.data(), from, count * static_cast<int64_t>(sizeof(float)));
  Finish();
  return read_;
}

void CudaMemory::WriteAsync(void* to, const void* host, int64_t bytes) {
  NoteIn("WriteAsync", CopyIn(stream_, to, host, bytes));
}

void CudaMemory::ReadAsync(void* host, const void* from, int64_t bytes) {
  NoteIn("ReadAsync", CopyOut(stream_, host, from, bytes));
}

void CudaMemory::Finish() { NoteIn("Finish", cuda::Finish(stream_)); }

bool CudaMemory::BeginRecording() {
  recording_failed_ = cuda::BeginRecording(stream_) != nullptr;
  recording_ = !recording_failed_;
  return recording_;
}

Graph CudaMemory::EndRecording() {
  Graph graph = nullptr;
  recording_failed_ |= cuda::EndRecording(stream_, &graph) != nullptr;
  recording_ = false;
  if (!recording_failed_) return graph;
  LaunchError();  // is forgotten with it
  FreeGraph(graph);
  return nullptr;
}

void CudaMemory::CheckLaunches(const char* verb) {
  NoteIn(verb, LaunchError());
  if (switches_.sync) NoteIn(verb, cuda::Finish(stream_));
}

void CudaMemory::NoteIn(const char* verb, Error error) {
  if (error == nullptr || !status_.ok()) return;
  Note(error);
  if (status_.ok()) return;  // of a recording
  status_ = absl::InternalError(
      switches_.sync
          ? absl::StrCat("CUDA: ", error, ", in ", verb)
          : absl::StrCat("CUDA: ", error, ", noticed in ", verb,
                         "; the environment variable FOLIO_CUDA_SYNC=1 finds verb and kernel"));
}

void CudaMemory::Note(Error error) {
  if (error == nullptr || !status_.ok()) return;
  if (recording_) {
    recording_failed_ = true;
    return;
  }
  status_ = absl::InternalError(absl::StrCat("CUDA: ", error));
}

}  // namespace folio::cuda
