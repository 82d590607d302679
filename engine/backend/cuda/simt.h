#pragma once

// What kernels are written in: CUDA C++, or the same words for a compiler that is none. The second
// form runs every thread of a block as a fiber of this process, so that tests run the kernels
// themselves on machines without a GPU (emulation.cc).

#include <cstdint>

namespace folio::cuda {

// cudaStream_t, where there is one.
using Stream = void*;

}  // namespace folio::cuda

#ifdef __CUDACC__

#define FOLIO_KERNEL __global__
#define FOLIO_DEVICE __device__ inline
#define FOLIO_HOST_DEVICE __host__ __device__ inline

namespace folio::cuda {

template <typename T>
FOLIO_DEVICE T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  return reinterpret_cast<T*>(dynamic_shared);
}

// Every kernel calls AllowNext and then, before it touches memory that an earlier kernel wrote or
// still reads, WaitForEarlier: with that, what overlaps is the launch, and loads of what no kernel
// writes.
FOLIO_DEVICE void AllowNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
FOLIO_DEVICE void WaitForEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FOLIO_DEVICE void BeginKernel() {
  AllowNext();
  WaitForEarlier();
}

// Of what other threads may write at the same time, by atomic operations.
FOLIO_HOST_DEVICE int Peek(const int* at) { return *const_cast<const volatile int*>(at); }

}  // namespace folio::cuda

#else

#include <atomic>
#include <functional>

#include "engine/backend/cuda/emulated_runtime.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's.
#define FOLIO_KERNEL
#define FOLIO_DEVICE inline
#define FOLIO_HOST_DEVICE inline
#define __grid_constant__
#define __launch_bounds__(...)

namespace folio::cuda {

// Of the fiber that runs.
extern dim3 threadIdx;
extern dim3 blockIdx;
extern dim3 gridDim;
extern dim3 blockDim;

inline void AllowNext() {}
inline void WaitForEarlier() {}
inline void BeginKernel() {}
inline int Peek(const int* at) {
  return std::atomic_ref<int>(*const_cast<int*>(at)).load(std::memory_order_relaxed);
}

void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
template <typename T>
T atomicAdd(T* at, T value) {
  return std::atomic_ref<T>(*at).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicExch(T* at, T value) {
  return std::atomic_ref<T>(*at).exchange(value, std::memory_order_relaxed);
}
template <typename T>
T atomicCAS(T* at, T expected, T value) {
  std::atomic_ref<T>(*at).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
// Aligned as CUDA has them: a sanitizer sees a load that a device would fault on.
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
// tensor_core.h: c += a b; a transpose; copies, of which FinishCopies leaves so many groups under
// way.
void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t Transpose8x8(uint32_t word);
void CopyAsync(void* shared, const void* global);
void CommitCopies();
void FinishCopies(int num_groups_left);

void* EmulatedShared();
template <typename T>
T* DynamicShared() {
  return static_cast<T*>(EmulatedShared());
}

// Runs `thread` for every thread of every block.
void RunGrid(dim3 grid, int block, int shared_bytes, const std::function<void()>& thread);

}  // namespace folio::cuda

// NOLINTEND(bugprone-reserved-identifier)

#endif

namespace folio::cuda {

// Whether blocks of a kernel may start while the one before it in the stream still runs
// (programmatic dependent launch, compute capability 9.0); set when a device is opened.
extern bool launches_overlap;

// Set when a device is opened: every launch is waited for.
extern bool launches_wait;

// After a launch: keeps the first error, and the name of its kernel, until LaunchError() (device.h)
// is asked. Engine thread only.
void NoteLaunch(cudaError_t code, const void* kernel, Stream stream);

// What a grid may have in y and z; x may have 2^31 - 1.
inline constexpr int64_t kMaxGridYZ = 65535;

// The only place where kernels are launched. Nothing happens for a grid without blocks.
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, int block, int shared_bytes, Stream stream,
            Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto* address = reinterpret_cast<const void*>(kernel);
  constexpr int kUsualSharedBytes = 48 << 10;
  if (shared_bytes > kUsualSharedBytes) {
    const cudaError_t refused =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (refused != cudaSuccess) return NoteLaunch(refused, address, stream);
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = {static_cast<unsigned>(block), 1, 1};
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = launches_overlap ? 1 : 0;
  NoteLaunch(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), address, stream);
}

}  // namespace folio::cuda
