// The emulated runtime refuses, keeps and puts off what the CUDA runtime does.
#include "engine/backend/cuda/emulated_runtime.h"

#include <array>
#include <vector>

#include "engine/backend/cuda/simt.h"
#include "gtest/gtest.h"

namespace folio::cuda {
namespace {

FOLIO_KERNEL void NothingKernel() {}
FOLIO_KERNEL void OtherKernel() {}
FOLIO_KERNEL void AddOneKernel(int* values) { values[threadIdx.x] += 1; }

class EmulatedRuntime : public testing::Test {
 protected:
  EmulatedRuntime() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, 0), cudaSuccess); }
  ~EmulatedRuntime() override {
    cudaStreamDestroy(stream_);
    ResetEmulatedDevice();
  }

  cudaError_t LaunchNothing(dim3 grid, unsigned block = 32, size_t shared_bytes = 0,
                            void (*kernel)() = NothingKernel) {
    const cudaLaunchConfig_t config = {grid, {block, 1, 1}, shared_bytes, stream_, nullptr, 0};
    return cudaLaunchKernelEx(&config, kernel);
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(EmulatedRuntime, KeepsTheLastErrorUntilSomebodyTakesIt) {
  emulated.memory_bytes = emulated.allocated_bytes + 1000;
  void* base = nullptr;
  EXPECT_EQ(cudaMallocAsync(&base, 1001, stream_), cudaErrorMemoryAllocation);
  EXPECT_EQ(LaunchNothing({1, 1, 1}), cudaSuccess);  // a success does not take it back
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulatedRuntime, AnErrorOfTheDeviceStays) {
  FailEmulatedDevice();
  EXPECT_EQ(LaunchNothing({1, 1, 1}), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

TEST_F(EmulatedRuntime, RefusesLaunchesBeyondTheLimits) {
  EXPECT_EQ(LaunchNothing({70000, 1, 1}), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 65535, 1}), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 65536, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing({1, 1, 65536}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing({1, 0, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 1025), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 0), cudaErrorInvalidConfiguration);
}

TEST_F(EmulatedRuntime, GivesAKernelAsMuchSharedMemoryAsItAskedFor) {
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 32, 48 << 10), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  const auto ask = [](int bytes) {
    return cudaFuncSetAttribute(OtherKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  EXPECT_EQ(ask(kSharedBytesSm80), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 32, kSharedBytesSm80, OtherKernel), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 1, 1}, 32, kSharedBytesSm80), cudaErrorInvalidValue);  // another one
  EXPECT_EQ(ask(kSharedBytesSm80 + 1), cudaErrorInvalidValue);
  emulated.max_shared_bytes = kSharedBytesSm90;
  EXPECT_EQ(ask(kSharedBytesSm90), cudaSuccess);
}

TEST_F(EmulatedRuntime, RunsWorkAtTheNextWait) {
  void* base = nullptr;
  void* host = nullptr;
  ASSERT_EQ(cudaMallocAsync(&base, sizeof(int), stream_), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&host, sizeof(int)), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  int& pinned = *static_cast<int*>(host);
  int& on_device = *static_cast<int*>(base);

  pinned = 1;
  cudaMemcpyAsync(base, host, sizeof(int), cudaMemcpyHostToDevice, stream_);
  pinned = 2;  // too early: this is what is copied
  int pageable = 5;
  cudaEventRecord(event, stream_);
  cudaMemcpyAsync(base, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream_);
  pageable = 6;
  EXPECT_EQ(on_device, -1);  // poison
  cudaEventSynchronize(event);
  EXPECT_EQ(on_device, 2);
  const cudaLaunchConfig_t config = {{1, 1, 1}, {1, 1, 1}, 0, stream_, nullptr, 0};
  cudaLaunchKernelEx(&config, AddOneKernel, static_cast<int*>(base));
  EXPECT_EQ(on_device, 2);
  cudaMemcpyAsync(host, base, sizeof(int), cudaMemcpyDeviceToHost, stream_);
  EXPECT_EQ(pinned, 2);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(pinned, 5 + 1);

  emulated.defers = false;
  cudaMemsetAsync(base, 0, sizeof(int), stream_);
  EXPECT_EQ(on_device, 0);
  cudaEventDestroy(event);
  cudaFreeHost(host);
  cudaFreeAsync(base, stream_);
}

TEST_F(EmulatedRuntime, WaitsAndAllocationsSpoilACapture) {
  cudaGraph_t graph = nullptr;
  void* base = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaMallocHost(&base, 10), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(LaunchNothing({1, 1, 1}), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace folio::cuda
