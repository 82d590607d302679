#pragma once

#include <cstdint>

#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {

// The few calls of the CUDA runtime and of cuBLAS that the backend makes, as plain functions:
// device.cu has the real ones, emulated_device.cc those of a device that is this process.

// nullptr: it worked; else what went wrong, in words that live forever.
using Error = const char*;

struct DeviceInfo {
  char name[128] = "";
  int major = 0;  // compute capability
  int minor = 0;
  int num_multiprocessors = 1;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Devices that can be used now; 0 without a driver, and then `why` says so.
int NumDevices(Error* why);

// One device with one stream, on which everything runs in order.
Error OpenDevice(int ordinal, DeviceInfo* info, Stream* stream, void** blas);
void CloseDevice(Stream stream, void* blas);

Error Allocate(int64_t bytes, void** base);
void Free(void* base);
Error Zero(Stream stream, void* at, int64_t bytes);
Error Copy(Stream stream, void* to, const void* from, int64_t bytes);
Error CopyIn(Stream stream, void* to, const void* host, int64_t bytes);
// Waits for everything before it.
Error CopyOut(Stream stream, void* host, const void* from, int64_t bytes);
// The first error of a launch since the last call.
Error LaunchError();

//   y [num_rows, outputs] fp32 (+)= x [num_rows, inputs] w [outputs, inputs]^T, x in the format of
//   w; 2 * num_rows * inputs * outputs FLOPs, fp32 sums
Error MatMul(Stream stream, void* blas, Weight dtype, const void* w, const void* x, int num_rows,
             int inputs, int outputs, bool add, float* y);

}  // namespace folio::cuda
