#include <cublas_v2.h>
#include <dlfcn.h>

#include <cstdio>

#include "engine/backend/cuda/device.h"

namespace folio::cuda {
namespace {

constexpr size_t kBlasWorkspaceBytes = 64 << 20;

Error ErrorOf(cudaError_t code) { return code == cudaSuccess ? nullptr : cudaGetErrorString(code); }

// cuBLAS is loaded when a device is opened, not with the program: it is 600 MB that a server on
// CPUs need not have, and its thread-local data would count against the stack of every thread (a
// library that asks for small stacks then gets no thread at all).
struct CuBlas {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  // Written out: the header has a second form for C++.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                         int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;
  decltype(&cublasGetStatusString) status_string = nullptr;

  // Never unloaded.
  Error Load() {
    void* library = dlopen("libcublas.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "libcublas.so.13 cannot be loaded; install cuBLAS 13";
    Find(library, "cublasCreate_v2", &create);
    Find(library, "cublasDestroy_v2", &destroy);
    Find(library, "cublasSetStream_v2", &set_stream);
    Find(library, "cublasSetWorkspace_v2", &set_workspace);
    Find(library, "cublasGemmEx", &gemm);
    Find(library, "cublasGetStatusString", &status_string);
    const bool whole = create && destroy && set_stream && set_workspace && gemm && status_string;
    return whole ? nullptr : "libcublas.so.13 lacks a function; install cuBLAS 13";
  }
  template <typename F>
  static void Find(void* library, const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(library, name));
  }
  Error ErrorOf(cublasStatus_t code) const {
    return code == CUBLAS_STATUS_SUCCESS ? nullptr : status_string(code);
  }
};

struct Blas {
  CuBlas api;
  cublasHandle_t handle = nullptr;
  void* workspace = nullptr;
};

cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream); }

Error OpenBlas(Stream stream, void** out) {
  auto* blas = new Blas;
  *out = blas;
  if (Error e = blas->api.Load()) return e;
  if (Error e = blas->api.ErrorOf(blas->api.create(&blas->handle))) return e;
  if (Error e = blas->api.ErrorOf(blas->api.set_stream(blas->handle, Native(stream)))) return e;
  if (Error e = ErrorOf(cudaMalloc(&blas->workspace, kBlasWorkspaceBytes))) return e;
  // Its own workspace: no allocation later, and the same sums in every run.
  return blas->api.ErrorOf(
      blas->api.set_workspace(blas->handle, blas->workspace, kBlasWorkspaceBytes));
}

cudaDataType_t TypeOf(Weight dtype) {
  return dtype == Weight::kF32 ? CUDA_R_32F : dtype == Weight::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

}  // namespace

int NumDevices(Error* why) {
  int count = 0;
  *why = ErrorOf(cudaGetDeviceCount(&count));
  return *why == nullptr ? count : 0;
}

Error OpenDevice(int ordinal, DeviceInfo* info, Stream* stream, void** blas) {
  if (Error e = ErrorOf(cudaSetDevice(ordinal))) return e;
  cudaDeviceProp properties;
  if (Error e = ErrorOf(cudaGetDeviceProperties(&properties, ordinal))) return e;
  std::snprintf(info->name, sizeof(info->name), "%s", properties.name);
  info->major = properties.major;
  info->minor = properties.minor;
  info->num_multiprocessors = properties.multiProcessorCount;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (Error e = ErrorOf(cudaMemGetInfo(&free_bytes, &total_bytes))) return e;
  info->free_bytes = static_cast<int64_t>(free_bytes);
  info->total_bytes = static_cast<int64_t>(total_bytes);
  cudaStream_t made = nullptr;
  if (Error e = ErrorOf(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking))) return e;
  *stream = made;
  return OpenBlas(*stream, blas);
}

void CloseDevice(Stream stream, void* blas) {
  if (blas != nullptr) {
    auto* opened = static_cast<Blas*>(blas);
    if (opened->handle != nullptr) opened->api.destroy(opened->handle);
    cudaFree(opened->workspace);
    delete opened;
  }
  if (stream != nullptr) cudaStreamDestroy(Native(stream));
}

Error Allocate(int64_t bytes, void** base) { return ErrorOf(cudaMalloc(base, bytes)); }
void Free(void* base) { cudaFree(base); }

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
  if (Error e =
          ErrorOf(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, Native(stream)))) {
    return e;
  }
  return ErrorOf(cudaStreamSynchronize(Native(stream)));
}

Error LaunchError() { return ErrorOf(cudaGetLastError()); }

Error MatMul(Stream, void* opened, Weight dtype, const void* w, const void* x, int num_rows,
             int inputs, int outputs, bool add, float* y) {
  const auto* blas = static_cast<const Blas*>(opened);
  const float one = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  const cudaDataType_t type = TypeOf(dtype);
  // cuBLAS counts by columns: y^T = w x^T.
  return blas->api.ErrorOf(blas->api.gemm(
      blas->handle, CUBLAS_OP_T, CUBLAS_OP_N, outputs, num_rows, inputs, &one, w, type, inputs, x,
      type, inputs, &beta, y, CUDA_R_32F, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace folio::cuda
