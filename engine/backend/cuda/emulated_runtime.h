#pragma once

// The part of the CUDA runtime that device.cu and Launch call, for a device that is this process:
// its memory is the heap, its kernels run in emulation.cc. It refuses what the runtime refuses
// (launches beyond the limits of the device, calls that a capture forbids), keeps errors as the
// runtime does, and runs work as late as it may: at the next wait.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace folio::cuda {

// As far as they are used, with the runtime's numbers.
enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};

// Opt-in limits of shared memory per block (CUDA programming guide, technical specifications per
// compute capability).
inline constexpr int kSharedBytesSm80 = 163 << 10;
inline constexpr int kSharedBytesSm86 = 99 << 10;
inline constexpr int kSharedBytesSm90 = 227 << 10;

// What the device is, and what tests may ask of it. One thread.
struct EmulatedDevice {
  // Few multiprocessors, so that small tests split their attention.
  int num_multiprocessors = 4;
  int compute_major = 8;
  int max_shared_bytes = kSharedBytesSm80;
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t host_memory_bytes = int64_t{1} << 30;

  // Whether work waits until somebody waits for it; else it is done when it is enqueued.
  bool defers = true;
  // Captures that do not begin, or cannot be made a graph.
  bool captures_fail_to_begin = false;
  bool captures_fail_to_end = false;

  int64_t num_allocations = 0;
  int64_t num_host_allocations = 0;
  int64_t allocated_bytes = 0;
  int64_t allocated_host_bytes = 0;
  int64_t num_launches = 0;
  // The launch of this number fails when it runs, and takes the device along; 0: none.
  int64_t faulty_launch = 0;
  int64_t num_captures = 0;
};
extern EmulatedDevice emulated;

// An error of work that was launched: every later call returns it, until ResetEmulatedDevice.
void FailEmulatedDevice();
// A new process: no error, the limits above.
void ResetEmulatedDevice();

struct EmulatedStream;
struct EmulatedEvent;
struct EmulatedGraph;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
using cudaMemPool_t = void*;

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
  int multiProcessorCount;
  size_t sharedMemPerBlockOptin;
};

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventDisableTiming = 2;

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

const char* cudaGetErrorString(cudaError_t error);
// The last error of any call; forgotten unless it is one of the device itself.
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int ordinal);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);

// Poisoned. Freed when what was enqueued before is done.
cudaError_t cudaMallocAsync(void** base, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* base, cudaStream_t stream);
cudaError_t cudaMallocHost(void** base, size_t bytes);
cudaError_t cudaFreeHost(void* base);
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

// Work of a stream that no function above makes (emulated_blas.cc).
void EnqueueEmulated(cudaStream_t stream, std::function<void()> work);

// Kernels have no names here: "EmulatedKernel".
cudaError_t cudaFuncGetName(const char** name, const void* kernel);

cudaError_t SetEmulatedSharedLimit(const void* kernel, int bytes);
cudaError_t LaunchEmulated(const cudaLaunchConfig_t& config, const void* kernel,
                           std::function<void()> thread);

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int bytes) {
  return SetEmulatedSharedLimit(reinterpret_cast<const void*>(kernel), bytes);
}
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args... args) {
  return LaunchEmulated(*config, reinterpret_cast<const void*>(kernel), [=] { kernel(args...); });
}

}  // namespace folio::cuda
