#include <cublas_v2.h>

#include <cstdio>

#include "engine/backend/cuda/device.h"

namespace folio::cuda {
namespace {

constexpr size_t kBlasWorkspaceBytes = 64 << 20;

Error ErrorOf(cudaError_t code) { return code == cudaSuccess ? nullptr : cudaGetErrorString(code); }
Error ErrorOf(cublasStatus_t code) {
  return code == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(code);
}

struct Blas {
  cublasHandle_t handle = nullptr;
  void* workspace = nullptr;
};

cudaStream_t Native(Stream stream) { return static_cast<cudaStream_t>(stream); }

Error OpenBlas(Stream stream, void** out) {
  auto* blas = new Blas;
  *out = blas;
  if (Error e = ErrorOf(cublasCreate(&blas->handle))) return e;
  if (Error e = ErrorOf(cublasSetStream(blas->handle, Native(stream)))) return e;
  if (Error e = ErrorOf(cudaMalloc(&blas->workspace, kBlasWorkspaceBytes))) return e;
  // Its own workspace: no allocation later, and the same sums in every run.
  return ErrorOf(cublasSetWorkspace(blas->handle, blas->workspace, kBlasWorkspaceBytes));
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
    if (opened->handle != nullptr) cublasDestroy(opened->handle);
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

Error MatMul(Stream, void* blas, Weight dtype, const void* w, const void* x, int num_rows,
             int inputs, int outputs, bool add, float* y) {
  const float one = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  const cudaDataType_t type = TypeOf(dtype);
  // cuBLAS counts by columns: y^T = w x^T.
  return ErrorOf(cublasGemmEx(static_cast<Blas*>(blas)->handle, CUBLAS_OP_T, CUBLAS_OP_N, outputs,
                              num_rows, inputs, &one, w, type, inputs, x, type, inputs, &beta, y,
                              CUDA_R_32F, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace folio::cuda
