#pragma once

#include <cstdint>

#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {

// The few calls of the CUDA runtime and of cuBLASLt that the backend makes, as plain functions:
// device.cu has the real ones, emulated_device.cc those of a device that is this process.

// nullptr: it worked; else what went wrong, in words that live forever. Who gets an error has it:
// the runtime forgets it, but for those after which the device does nothing any more.
using Error = const char*;

struct DeviceInfo {
  char name[128] = "";
  int major = 0;  // compute capability
  int minor = 0;
  int num_multiprocessors = 1;
  int max_shared_bytes = 48 << 10;  // of a block
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// What is turned off to find a fault, or to see what it brings (switches.h).
struct Switches {
  bool graphs = true;   // steps are recorded
  bool overlap = true;  // launches overlap, where the device can (programmatic dependent launch)
  bool sync = false;    // every launch is waited for
};

// Devices that can be used now; 0 without a driver, and then `why` says so.
int NumDevices(Error* why);

// One device with one stream, on which everything runs in order.
Error OpenDevice(int ordinal, const Switches& switches, DeviceInfo* info, Stream* stream,
                 void** blas);
void CloseDevice(Stream stream, void* blas);

// Device memory, freed once what was launched before is done.
Error Allocate(Stream stream, int64_t bytes, void** base);
void Free(Stream stream, void* base);
// Memory of the host that the device reaches by itself.
Error AllocateHost(int64_t bytes, void** base);
void FreeHost(void* base);
Error Zero(Stream stream, void* at, int64_t bytes);
Error Copy(Stream stream, void* to, const void* from, int64_t bytes);
// Memory from AllocateHost is copied later, other memory before this returns.
Error CopyIn(Stream stream, void* to, const void* host, int64_t bytes);
// Complete after Finish.
Error CopyOut(Stream stream, void* host, const void* from, int64_t bytes);
// Waits for everything before it; the first error of what ran, or of a launch.
Error Finish(Stream stream);
// A place in the stream that can be waited for.
using Event = void*;
Error MakeEvent(Event* event);
void FreeEvent(Event event);
Error Record(Stream stream, Event event);
Error WaitFor(Event event);
// An event that notes when the device reached it; recording it costs more.
Error MakeTimer(Event* event);
// After Finish.
Error SecondsBetween(Event begin, Event end, double* seconds);
// The first launch that was refused since the last call, or that failed while it was waited for,
// with the name of its kernel.
Error LaunchError();

// A product with a weight matrix; x is in the format of the weights.
//   y [num_rows, outputs] fp32 (+)= x [num_rows, inputs] w [outputs, inputs]^T (+ bias)
struct MatMulArgs {
  Weight dtype;
  const void* w;
  const void* x;
  int num_rows;
  int inputs;
  int outputs;
  const float* bias;  // null: none
  bool add;
  float* y;
};
// By cuBLASLt, which is asked once per shape how; fp32 sums.
//   2 * num_rows * inputs * outputs FLOPs
Error MatMul(Stream stream, void* blas, const MatMulArgs& args);

// What is launched from BeginRecording to EndRecording is not run, but kept as one piece of work
// that can be launched again and again.
using Graph = void*;
Error BeginRecording(Stream stream);
Error EndRecording(Stream stream, Graph* graph);
Error LaunchGraph(Stream stream, Graph graph);
void FreeGraph(Graph graph);

}  // namespace folio::cuda
