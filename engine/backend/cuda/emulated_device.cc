// A device that is this process: its memory is the heap, its kernels run in emulation.cc. Memory is
// poisoned when it is allocated.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/backend/cuda/device.h"

namespace folio::cuda {

// For tests: how often memory was asked for, what is held, and how much there is.
int64_t num_allocations = 0;
int64_t allocated_bytes = 0;
int64_t memory_bytes = int64_t{1} << 30;

int NumDevices(Error* why) {
  *why = nullptr;
  return 1;
}

Error OpenDevice(int, DeviceInfo* info, Stream* stream, void** blas) {
  std::snprintf(info->name, sizeof(info->name), "emulated");
  // Few enough that small tests split their attention.
  info->num_multiprocessors = 4;
  info->max_shared_bytes = 227 << 10;
  info->total_bytes = info->free_bytes = memory_bytes;
  *stream = nullptr;
  *blas = nullptr;
  return nullptr;
}

void CloseDevice(Stream, void*) {}

Error Allocate(Stream, int64_t bytes, void** base) {
  ++num_allocations;
  if (allocated_bytes + bytes > memory_bytes) return "out of memory";
  if (Error error = AllocateHost(bytes, base)) return error;
  allocated_bytes += static_cast<int64_t>(malloc_usable_size(*base));
  return nullptr;
}

void Free(Stream, void* base) {
  allocated_bytes -= static_cast<int64_t>(malloc_usable_size(base));
  std::free(base);
}

Error AllocateHost(int64_t bytes, void** base) {
  *base = std::malloc(bytes);
  if (*base == nullptr) return "out of memory";
  std::memset(*base, 0xff, bytes);
  return nullptr;
}

void FreeHost(void* base) { std::free(base); }

Error Zero(Stream, void* at, int64_t bytes) {
  Submit([=] { std::memset(at, 0, bytes); });
  return nullptr;
}

Error Copy(Stream, void* to, const void* from, int64_t bytes) {
  Submit([=] { std::memcpy(to, from, bytes); });
  return nullptr;
}

Error CopyIn(Stream stream, void* to, const void* host, int64_t bytes) {
  return Copy(stream, to, host, bytes);
}

Error CopyOut(Stream stream, void* host, const void* from, int64_t bytes) {
  return Copy(stream, host, from, bytes);
}

Error Finish(Stream) { return nullptr; }
Error MakeEvent(Event* event) {
  *event = nullptr;
  return nullptr;
}
void FreeEvent(Event) {}
Error Record(Stream, Event) { return nullptr; }
Error WaitFor(Event) { return nullptr; }

// For tests.
bool recordings_fail = false;

Error BeginRecording(Stream) {
  RecordInto(new Work);
  return nullptr;
}

Error EndRecording(Stream, Graph* graph) {
  *graph = RecordInto(nullptr);
  return recordings_fail ? "this device records nothing" : nullptr;
}

Error LaunchGraph(Stream, Graph graph) {
  for (const std::function<void()>& work : *static_cast<Work*>(graph)) work();
  return nullptr;
}

void FreeGraph(Graph graph) { delete static_cast<Work*>(graph); }

Error LaunchError() { return nullptr; }

namespace {

// Operands as fp32, so that one plain product serves all formats.
float ValueOf(Weight dtype, const void* values, int64_t at) {
  if (dtype == Weight::kF32) return static_cast<const float*>(values)[at];
  const uint16_t bits = static_cast<const uint16_t*>(values)[at];
  if (dtype == Weight::kBf16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t wide = sign | (bits & 0x7fffu) << 13;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value * 0x1p112f;
}

}  // namespace

Error MatMul(Stream, void*, const MatMulArgs& args) {
  Submit([=] {
    for (int64_t row = 0; row < args.num_rows; ++row) {
      for (int64_t output = 0; output < args.outputs; ++output) {
        float sum = args.bias == nullptr ? 0.0f : args.bias[output];
        for (int64_t i = 0; i < args.inputs; ++i) {
          sum += ValueOf(args.dtype, args.w, output * args.inputs + i) *
                 ValueOf(args.dtype, args.x, row * args.inputs + i);
        }
        float& to = args.y[row * args.outputs + output];
        to = args.add ? to + sum : sum;
      }
    }
  });
  return nullptr;
}

}  // namespace folio::cuda
