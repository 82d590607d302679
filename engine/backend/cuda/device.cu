#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/backend/cuda/blas.h"
#include "engine/backend/cuda/device.h"

namespace folio::cuda {

bool launches_overlap = false;
bool launches_wait = false;

namespace {

// The error is the caller's now: the runtime forgets it, unless it is one of the device itself.
Error ErrorOf(cudaError_t code) {
  if (code == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(code);
}

cudaError_t refused_launch = cudaSuccess;
const void* refused_kernel = nullptr;

// "error, in kernel NAME".
Error WithKernel(Error error, const void* kernel) {
  static char words[512];
  const char* symbol = nullptr;
  if (error == nullptr || cudaFuncGetName(&symbol, kernel) != cudaSuccess) return error;
  char* readable = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);
  std::snprintf(words, sizeof(words), "%s, in kernel %s", error, readable ? readable : symbol);
  std::free(readable);
  return words;
}

cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream); }

// What was freed stays with the process: a later allocation costs nothing and waits for nobody.
Error KeepFreedMemory(int ordinal) {
  cudaMemPool_t pool = nullptr;
  if (Error e = ErrorOf(cudaDeviceGetDefaultMemPool(&pool, ordinal))) return e;
  uint64_t all = UINT64_MAX;
  return ErrorOf(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
}

FOLIO_KERNEL void NothingKernel() { BeginKernel(); }

// Drivers and devices that cannot overlap launches refuse them.
void TryOverlap(int compute_major, Stream stream) {
  launches_overlap = compute_major >= 9;
  Launch(NothingKernel, dim3{1, 1, 1}, 32, 0, stream);
  if (LaunchError() != nullptr) launches_overlap = false;
}

}  // namespace

int NumDevices(Error* why) {
  int count = 0;
  *why = ErrorOf(cudaGetDeviceCount(&count));
  return *why == nullptr ? count : 0;
}

Error OpenDevice(int ordinal, const Switches& switches, DeviceInfo* info, Stream* stream,
                 void** blas) {
  if (Error e = ErrorOf(cudaSetDevice(ordinal))) return e;
  cudaDeviceProp properties;
  if (Error e = ErrorOf(cudaGetDeviceProperties(&properties, ordinal))) return e;
  std::snprintf(info->name, sizeof(info->name), "%.127s", properties.name);
  info->major = properties.major;
  info->minor = properties.minor;
  info->num_multiprocessors = properties.multiProcessorCount;
  info->max_shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  if (Error e = KeepFreedMemory(ordinal)) return e;
  cudaStream_t made = nullptr;
  if (Error e = ErrorOf(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking))) return e;
  *stream = made;
  launches_wait = switches.sync;
  launches_overlap = false;
  if (switches.overlap) TryOverlap(properties.major, *stream);
  if (Error e = OpenBlas(blas)) return e;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (Error e = ErrorOf(cudaMemGetInfo(&free_bytes, &total_bytes))) return e;
  info->free_bytes = static_cast<int64_t>(free_bytes);
  info->total_bytes = static_cast<int64_t>(total_bytes);
  return nullptr;
}

void CloseDevice(Stream stream, void* blas) {
  CloseBlas(blas);
  if (stream != nullptr) cudaStreamDestroy(Native(stream));
}

Error Allocate(Stream stream, int64_t bytes, void** base) {
  return ErrorOf(cudaMallocAsync(base, bytes, Native(stream)));
}
void Free(Stream stream, void* base) { cudaFreeAsync(base, Native(stream)); }

Error AllocateHost(int64_t bytes, void** base) { return ErrorOf(cudaMallocHost(base, bytes)); }
void FreeHost(void* base) { cudaFreeHost(base); }

Error Zero(Stream stream, void* at, int64_t bytes) {
  return ErrorOf(cudaMemsetAsync(at, 0, bytes, Native(stream)));
}

Error Copy(Stream stream, void* to, const void* from, int64_t bytes) {
  return ErrorOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, Native(stream)));
}

Error CopyIn(Stream stream, void* to, const void* host, int64_t bytes) {
  return ErrorOf(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, Native(stream)));
}

Error CopyOut(Stream stream, void* host, const void* from, int64_t bytes) {
  return ErrorOf(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, Native(stream)));
}

Error Finish(Stream stream) {
  if (Error e = ErrorOf(cudaStreamSynchronize(Native(stream)))) return e;
  return LaunchError();
}

Error MakeEvent(Event* event) {
  cudaEvent_t made = nullptr;
  const Error e = ErrorOf(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *event = made;
  return e;
}
void FreeEvent(Event event) {
  if (event != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}
Error Record(Stream stream, Event event) {
  return ErrorOf(cudaEventRecord(static_cast<cudaEvent_t>(event), Native(stream)));
}
Error WaitFor(Event event) {
  return ErrorOf(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}

Error MakeTimer(Event* event) {
  cudaEvent_t made = nullptr;
  const Error e = ErrorOf(cudaEventCreateWithFlags(&made, cudaEventDefault));
  *event = made;
  return e;
}
Error SecondsBetween(Event begin, Event end, double* seconds) {
  float milliseconds = 0;
  const Error e = ErrorOf(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin),
                                               static_cast<cudaEvent_t>(end)));
  *seconds = milliseconds * 1e-3;
  return e;
}

void NoteLaunch(cudaError_t code, const void* kernel, Stream stream) {
  if (code == cudaSuccess && launches_wait) code = cudaStreamSynchronize(Native(stream));
  if (code == cudaSuccess || refused_launch != cudaSuccess) return;
  refused_launch = code;
  refused_kernel = kernel;
}
Error LaunchError() {
  return WithKernel(ErrorOf(std::exchange(refused_launch, cudaSuccess)), refused_kernel);
}

Error BeginRecording(Stream stream) {
  return ErrorOf(cudaStreamBeginCapture(Native(stream), cudaStreamCaptureModeThreadLocal));
}

Error EndRecording(Stream stream, Graph* graph) {
  *graph = nullptr;
  cudaGraph_t recorded = nullptr;
  if (Error e = ErrorOf(cudaStreamEndCapture(Native(stream), &recorded))) return e;
  cudaGraphExec_t ready = nullptr;
  const Error e = ErrorOf(cudaGraphInstantiate(&ready, recorded, 0));
  cudaGraphDestroy(recorded);
  *graph = ready;
  return e;
}

Error LaunchGraph(Stream stream, Graph graph) {
  return ErrorOf(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Native(stream)));
}

void FreeGraph(Graph graph) {
  if (graph != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace folio::cuda
