#include "engine/backend/cuda/emulated_runtime.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "engine/backend/cuda/simt.h"

namespace folio::cuda {

EmulatedDevice emulated;

using Work = std::function<void()>;

struct EmulatedGraph {
  std::vector<Work> work;
};
struct EmulatedStream {
  std::deque<Work> waiting;
  int64_t num_enqueued = 0;
  int64_t num_done = 0;
  std::unique_ptr<EmulatedGraph> capture;
  bool capture_is_valid = true;
};
struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
  int64_t place = 0;
  // When the stream got there; null: not asked for.
  std::shared_ptr<double> milliseconds;
};

namespace {

// What a kernel may have without being asked for more.
constexpr int kUsualSharedBytes = 48 << 10;
constexpr unsigned kMaxBlockThreads = 1024;
constexpr unsigned kGridLimitX = std::numeric_limits<int>::max();
constexpr unsigned kGridLimitYZ = 65535;
constexpr size_t kAlignment = 256;
// Larger ones are taken page by page as they are written, and are zeros, not poison.
constexpr size_t kLarge = size_t{1} << 30;

cudaError_t last_error = cudaSuccess;
cudaError_t device_error = cudaSuccess;  // stays
std::map<const void*, int> shared_limits;
std::map<const void*, size_t> device_blocks;
std::map<const void*, size_t> host_blocks;
EmulatedStream* capturing = nullptr;

cudaError_t Report(cudaError_t error) {
  if (device_error != cudaSuccess) error = device_error;
  if (error != cudaSuccess) last_error = error;
  return error;
}

// A call that no stream may make while it is captured: the capture is lost.
bool SpoilsCapture() {
  if (capturing == nullptr) return false;
  capturing->capture_is_valid = false;
  return true;
}

void RunUntil(EmulatedStream* stream, int64_t place) {
  while (stream->num_done < place) {
    const Work work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    work();
    ++stream->num_done;
  }
}

void Enqueue(EmulatedStream* stream, Work work) {
  if (stream->capture != nullptr) {
    stream->capture->work.push_back(std::move(work));
    return;
  }
  stream->waiting.push_back(std::move(work));
  ++stream->num_enqueued;
  if (!emulated.defers) RunUntil(stream, stream->num_enqueued);
}

bool IsPinned(const void* at) {
  const auto after = host_blocks.upper_bound(at);
  if (after == host_blocks.begin()) return false;
  const auto& [base, bytes] = *std::prev(after);
  return at < static_cast<const char*>(base) + bytes;
}

void* Take(size_t bytes) {
  if (bytes >= kLarge) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
  }
  void* base = nullptr;
  if (posix_memalign(&base, kAlignment, bytes) != 0) return nullptr;
  std::memset(base, 0xff, bytes);
  return base;
}

void GiveBack(void* base, size_t bytes) {
  if (bytes >= kLarge) {
    munmap(base, bytes);
  } else {
    std::free(base);
  }
}

void Fill(void* at, int value, size_t bytes) {
  const auto block = device_blocks.find(at);
  if (value == 0 && bytes >= kLarge && block != device_blocks.end() && block->second == bytes) {
    madvise(at, bytes, MADV_DONTNEED);
  } else {
    std::memset(at, value, bytes);
  }
}

}  // namespace

void FailEmulatedDevice() { device_error = cudaErrorIllegalAddress; }

void ResetEmulatedDevice() {
  const EmulatedDevice before = emulated;
  emulated = {};
  emulated.allocated_bytes = before.allocated_bytes;
  emulated.allocated_host_bytes = before.allocated_host_bytes;
  last_error = device_error = cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() {
  return device_error != cudaSuccess ? device_error : std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return device_error != cudaSuccess ? device_error : last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  return Report(ordinal == 0 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  properties->major = emulated.compute_major;
  properties->multiProcessorCount = emulated.num_multiprocessors;
  properties->sharedMemPerBlockOptin = emulated.max_shared_bytes;
  return Report(cudaSuccess);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return Report(cudaSuccess);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return Report(cudaSuccess);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = emulated.memory_bytes - emulated.allocated_bytes;
  *total_bytes = emulated.memory_bytes;
  return Report(cudaSuccess);
}

cudaError_t cudaMallocAsync(void** base, size_t bytes, cudaStream_t) {
  if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
  ++emulated.num_allocations;
  const auto size = static_cast<int64_t>(bytes);
  if (emulated.allocated_bytes + size > emulated.memory_bytes) {
    return Report(cudaErrorMemoryAllocation);
  }
  *base = Take(bytes);
  if (*base == nullptr) return Report(cudaErrorMemoryAllocation);
  device_blocks[*base] = bytes;
  emulated.allocated_bytes += size;
  return Report(cudaSuccess);
}

cudaError_t cudaFreeAsync(void* base, cudaStream_t stream) {
  const auto block = device_blocks.find(base);
  if (block == device_blocks.end()) return Report(cudaErrorInvalidValue);
  const size_t bytes = block->second;
  device_blocks.erase(block);
  emulated.allocated_bytes -= static_cast<int64_t>(bytes);
  Enqueue(stream, [=] { GiveBack(base, bytes); });
  return Report(cudaSuccess);
}

cudaError_t cudaMallocHost(void** base, size_t bytes) {
  if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
  ++emulated.num_host_allocations;
  const auto size = static_cast<int64_t>(bytes);
  if (emulated.allocated_host_bytes + size > emulated.host_memory_bytes) {
    return Report(cudaErrorMemoryAllocation);
  }
  *base = Take(bytes);
  if (*base == nullptr) return Report(cudaErrorMemoryAllocation);
  host_blocks[*base] = bytes;
  emulated.allocated_host_bytes += size;
  return Report(cudaSuccess);
}

// The runtime does not say that this waits for copies: they would meet poison.
cudaError_t cudaFreeHost(void* base) {
  if (base == nullptr) return Report(cudaSuccess);
  if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
  const auto block = host_blocks.find(base);
  if (block == host_blocks.end()) return Report(cudaErrorInvalidValue);
  emulated.allocated_host_bytes -= static_cast<int64_t>(block->second);
  std::memset(base, 0xff, block->second);
  GiveBack(base, block->second);
  host_blocks.erase(block);
  return Report(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  Enqueue(stream, [=] { Fill(at, value, bytes); });
  return Report(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice && !IsPinned(from)) {
    // Read before the call returns.
    const auto* values = static_cast<const char*>(from);
    auto copy = std::make_shared<std::vector<char>>(values, values + bytes);
    Enqueue(stream, [=] { std::memcpy(to, copy->data(), bytes); });
    return Report(cudaSuccess);
  }
  if (kind == cudaMemcpyDeviceToHost && !IsPinned(to)) {
    if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
    RunUntil(stream, stream->num_enqueued);  // written before the call returns
    std::memcpy(to, from, bytes);
    return Report(cudaSuccess);
  }
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return Report(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return Report(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RunUntil(stream, stream->num_enqueued);
  delete stream;
  return Report(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
  RunUntil(stream, stream->num_enqueued);
  return Report(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EmulatedEvent;
  if ((flags & cudaEventDisableTiming) == 0) (*event)->milliseconds = std::make_shared<double>(0);
  return Report(cudaSuccess);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Report(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->milliseconds != nullptr) {
    Enqueue(stream, [at = event->milliseconds] {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      *at = std::chrono::duration<double, std::milli>(now).count();
    });
  }
  event->stream = stream;
  event->place = stream->num_enqueued;
  return Report(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (SpoilsCapture()) return Report(cudaErrorStreamCaptureUnsupported);
  if (event->stream != nullptr) RunUntil(event->stream, event->place);
  return Report(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->milliseconds == nullptr || end->milliseconds == nullptr) {
    return Report(cudaErrorInvalidValue);
  }
  *milliseconds = static_cast<float>(*end->milliseconds - *begin->milliseconds);
  return Report(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (emulated.captures_fail_to_begin) return Report(cudaErrorStreamCaptureUnsupported);
  ++emulated.num_captures;
  stream->capture = std::make_unique<EmulatedGraph>();
  stream->capture_is_valid = true;
  capturing = stream;
  return Report(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  capturing = nullptr;
  *graph = nullptr;
  std::unique_ptr<EmulatedGraph> captured = std::move(stream->capture);
  if (!stream->capture_is_valid || emulated.captures_fail_to_end) {
    return Report(cudaErrorStreamCaptureInvalidated);
  }
  *graph = captured.release();
  return Report(cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned) {
  *ready = new EmulatedGraph(*graph);
  return Report(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Report(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  for (const Work& work : graph->work) Enqueue(stream, work);
  return Report(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return Report(cudaSuccess);
}

void EnqueueEmulated(cudaStream_t stream, std::function<void()> work) {
  Enqueue(stream, std::move(work));
}

cudaError_t cudaFuncGetName(const char** name, const void*) {
  *name = "EmulatedKernel";
  return cudaSuccess;
}

cudaError_t SetEmulatedSharedLimit(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > emulated.max_shared_bytes) return Report(cudaErrorInvalidValue);
  shared_limits[kernel] = bytes;
  return Report(cudaSuccess);
}

cudaError_t LaunchEmulated(const cudaLaunchConfig_t& config, const void* kernel,
                           std::function<void()> thread) {
  const dim3 grid = config.gridDim;
  const dim3 block = config.blockDim;
  const bool has_size = grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0;
  if (!has_size || grid.x > kGridLimitX || grid.y > kGridLimitYZ || grid.z > kGridLimitYZ ||
      block.x > kMaxBlockThreads || block.y != 1 || block.z != 1) {
    return Report(cudaErrorInvalidConfiguration);
  }
  const auto granted = shared_limits.find(kernel);
  const int limit = granted == shared_limits.end() ? kUsualSharedBytes : granted->second;
  if (config.dynamicSmemBytes > static_cast<size_t>(limit)) return Report(cudaErrorInvalidValue);
  const bool faulty = ++emulated.num_launches == emulated.faulty_launch;
  const auto shared_bytes = static_cast<int>(config.dynamicSmemBytes);
  Enqueue(config.stream, [=, thread = std::move(thread)] {
    if (faulty) return FailEmulatedDevice();
    RunGrid(grid, static_cast<int>(block.x), shared_bytes, thread);
  });
  return Report(cudaSuccess);
}

}  // namespace folio::cuda
