#pragma once

// What kernels are written in: CUDA C++, or the same words for a compiler that is none. The second
// form runs every thread of a block as a fiber of this process, so that tests run the kernels
// themselves on machines without a GPU (emulation.cc).

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

// Errors stay with the device until DeviceError() is asked.
template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, int block, int shared_bytes, Stream stream,
            Args... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(args...);
}

}  // namespace folio::cuda

#else

#include <cstdint>
#include <functional>
#include <vector>

#define FOLIO_KERNEL
#define FOLIO_DEVICE inline
#define FOLIO_HOST_DEVICE inline
#define __grid_constant__
#define __launch_bounds__(...)

namespace folio::cuda {

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};
// Of the fiber that runs.
extern dim3 threadIdx;
extern dim3 blockIdx;
extern dim3 gridDim;
extern dim3 blockDim;

void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
template <typename T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at += value;
  return old;
}
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
// tensor_core.h: c += a b.
void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

void* EmulatedShared();
template <typename T>
T* DynamicShared() {
  return static_cast<T*>(EmulatedShared());
}

// Does it now, or appends it to what RecordInto was given last (null: nothing), which is returned.
using Work = std::vector<std::function<void()>>;
void Submit(std::function<void()> work);
Work* RecordInto(Work* work);

// Runs `thread` for every thread of every block.
void RunGrid(dim3 grid, int block, int shared_bytes, const std::function<void()>& thread);

template <typename... Params, typename... Args>
void Launch(void (*kernel)(Params...), dim3 grid, int block, int shared_bytes, Stream,
            Args... args) {
  Submit([=] { RunGrid(grid, block, shared_bytes, [&] { kernel(args...); }); });
}

}  // namespace folio::cuda

#endif
