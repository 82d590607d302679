// What the switches of the environment change: recordings, and what a failed launch says.
#include "engine/backend/cuda/switches.h"

#include <cstdlib>
#include <memory>

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/emulated_runtime.h"
#include "engine/backend/cuda/simt.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"

namespace folio::test {
namespace {

// Its prompts go into tiles, whose kernel needs more shared memory than it has without asking.
const AttentionShape kShape = {
    .name = "bf16_128", .head_dim = 128, .page_tokens = 64, .trained_length = 512};
constexpr int kMaxRows = 16;

class CudaSwitches : public testing::Test {
 protected:
  ~CudaSwitches() override {
    for (const char* name : {"FOLIO_CUDA_GRAPHS", "FOLIO_CUDA_PDL", "FOLIO_CUDA_SYNC"}) {
      unsetenv(name);
    }
    rig_.reset();
    cuda::ResetEmulatedDevice();
    cuda::launches_wait = false;
  }
  // A stream of full attention on the device under the switches of now.
  void Open() {
    rig_ = std::make_unique<AttentionRig>(kShape, *CreateCudaBackend(0), kMaxRows);
    const auto spec =
        ResolveAttention({{"full", {}}, {"plain", {}}}, {}, kShape.model(), {100, false});
    rig_->AddStream(PlanFor(*spec, kShape.model(), kMaxRows));
  }
  void Step(int rows) {
    const int64_t width = (kShape.num_heads + 2 * kShape.num_kv_heads) * kShape.head_dim;
    const std::vector<float> qkv = RandomFloats(rows * width, &random_);
    rig_->Step({{0, rows}}, std::vector(kShape.num_layers, qkv));
  }
  int64_t CapturesOfAnAnswer() {
    Open();
    const int64_t before = cuda::emulated.num_captures;
    Step(kMaxRows);
    for (int n = 0; n < 4; ++n) Step(1);
    return cuda::emulated.num_captures - before;
  }
  // What a step says in which `fault` happens.
  std::string MessageOf(void (*fault)()) {
    Open();
    rig_->on_reserved = fault;
    Step(kMaxRows);
    return std::string(rig_->backend()->status().message());
  }

  std::mt19937_64 random_{7};
  std::unique_ptr<AttentionRig> rig_;
};

TEST_F(CudaSwitches, AreGraphsAndOverlapWithoutWaiting) {
  const auto switches = cuda::SwitchesOfEnvironment();
  ASSERT_TRUE(switches.ok());
  EXPECT_TRUE(switches->graphs);
  EXPECT_TRUE(switches->overlap);
  EXPECT_FALSE(switches->sync);
}

TEST_F(CudaSwitches, TurnOverlapOff) {
  cuda::emulated.compute_major = 9;
  Open();
  EXPECT_TRUE(cuda::launches_overlap);
  setenv("FOLIO_CUDA_PDL", "0", 1);
  Open();
  EXPECT_FALSE(cuda::launches_overlap);
}

TEST_F(CudaSwitches, RefuseWhatIsNeitherZeroNorOne) {
  setenv("FOLIO_CUDA_GRAPHS", "no", 1);
  const auto backend = CreateCudaBackend(0);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(backend.status().message().find("FOLIO_CUDA_GRAPHS is 'no', must be 0 or 1"),
            std::string::npos)
      << backend.status();
}

TEST_F(CudaSwitches, RecordNothingWithoutGraphs) {
  EXPECT_EQ(CapturesOfAnAnswer(), 1);
  setenv("FOLIO_CUDA_GRAPHS", "0", 1);
  EXPECT_EQ(CapturesOfAnAnswer(), 0);
}

TEST_F(CudaSwitches, RecordNothingThatIsWaitedFor) {
  setenv("FOLIO_CUDA_SYNC", "1", 1);
  EXPECT_EQ(CapturesOfAnAnswer(), 0);
}

void RefuseSharedMemory() { cuda::emulated.max_shared_bytes = 0; }

TEST_F(CudaSwitches, ARefusedLaunchNamesVerbAndKernel) {
  EXPECT_EQ(MessageOf(RefuseSharedMemory),
            "CUDA: invalid argument, in kernel EmulatedKernel, noticed in Attend; the environment "
            "variable FOLIO_CUDA_SYNC=1 finds verb and kernel");
}

// The second launch of a step is that of attention.
void FailInAttend() { cuda::emulated.faulty_launch = cuda::emulated.num_launches + 2; }

TEST_F(CudaSwitches, SyncNamesVerbAndKernelOfAFaultOfTheDevice) {
  setenv("FOLIO_CUDA_SYNC", "1", 1);
  EXPECT_EQ(MessageOf(FailInAttend),
            "CUDA: an illegal memory access was encountered, in kernel EmulatedKernel, in Attend");
}

TEST_F(CudaSwitches, WithoutSyncAFaultIsNoticedLaterAndSaysHowToFindTheVerb) {
  EXPECT_EQ(
      MessageOf(FailInAttend),
      "CUDA: an illegal memory access was encountered, noticed in FinishStep; the environment "
      "variable FOLIO_CUDA_SYNC=1 finds verb and kernel");
}

}  // namespace
}  // namespace folio::test
