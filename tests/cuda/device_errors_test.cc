// What the backend makes of errors of the runtime: a request may fail, a step may run unrecorded;
// only what the device itself reports ends the backend.
#include "engine/backend/cuda/emulated_runtime.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 64;
constexpr int kPromptTokens = 20;
const AttentionShape kShape = {.name = "bf16", .trained_length = 160};

class DeviceErrors : public testing::Test {
 protected:
  ~DeviceErrors() override { cuda::ResetEmulatedDevice(); }

  static AttentionPlan Plan(const std::string& strategy, const AttentionShape& shape = kShape) {
    const auto spec = ResolveAttention({{strategy, {}}, {}}, {}, shape.model(), {2000, false});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, shape.model(), kPromptTokens);
  }
  // Steps of the stream in `rig`, all with the same random numbers.
  std::vector<float> Steps(AttentionRig* rig, int stream, const std::vector<int>& counts) {
    const int64_t width = (kShape.num_heads + 2 * kShape.num_kv_heads) * kShape.head_dim;
    std::mt19937_64 random(7);
    std::vector<float> all;
    for (const int count : counts) {
      std::vector<std::vector<float>> qkv;
      for (int layer = 0; layer < kShape.num_layers; ++layer) {
        qkv.push_back(RandomFloats(count * width, &random));
      }
      const std::vector<float> out = rig->Step({{stream, count}}, qkv);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

  AttentionRig rig_{kShape, NewTestBackend(), kMaxRows};
  Backend* const backend_ = rig_.backend();
};

TEST_F(DeviceErrors, MemoryThatIsNotThereIsTheRequestsErrorAlone) {
  const int stream = rig_.AddStream(Plan("full"));
  Steps(&rig_, stream, {20});
  // Chunks of one page and a huge attention length: more choices than there is memory for.
  AttentionPlan many = Plan("long_heads");
  many.selection.chunk_tokens = kShape.page_tokens;
  many.selection.num_free_picks = 1 << 20;
  SequenceSlice slice;
  slice.num_rows = 10;
  slice.plan = &many;
  cuda::emulated.memory_bytes = cuda::emulated.allocated_bytes + (64 << 20);
  EXPECT_EQ(backend_->Reserve(slice, true).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(backend_->status().ok()) << backend_->status();
  Steps(&rig_, stream, {20, 1, 1, 1});
  EXPECT_TRUE(backend_->status().ok()) << backend_->status();
}

TEST_F(DeviceErrors, PinnedMemoryIsTakenWhileAStepIsPlanned) {
  AttentionRig rig(kShape, NewTestBackend(), kMaxRows);
  int64_t before = 0;
  rig.on_reserved = [&] { before = cuda::emulated.num_host_allocations; };
  const int stream = rig.AddStream(Plan("long_heads"));
  for (const int count : {20, 1, 1, 60, 1}) {
    Steps(&rig, stream, {count});
    EXPECT_EQ(cuda::emulated.num_host_allocations, before) << count;
  }
}

TEST_F(DeviceErrors, PinnedMemoryThatIsNotThereIsTheRequestsErrorAlone) {
  const int stream = rig_.AddStream(Plan("full"));
  Steps(&rig_, stream, {20});
  const AttentionPlan plan = Plan("sliding_window");
  const std::vector<FrameId> pages(2 << 20);
  SequenceSlice slice;
  slice.num_rows = 1;
  slice.first_position = int64_t{kShape.page_tokens} * static_cast<int64_t>(pages.size()) - 1;
  slice.plan = &plan;
  slice.pages = pages;
  cuda::emulated.host_memory_bytes = cuda::emulated.allocated_host_bytes + (1 << 20);
  const absl::Status refused = backend_->Reserve(slice, true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("pinned"), std::string::npos) << refused;
  Steps(&rig_, stream, {20, 1, 1, 1});
  EXPECT_TRUE(backend_->status().ok()) << backend_->status();
}

TEST_F(DeviceErrors, StepsThatCannotBeRecordedRunAsTheyAre) {
  AttentionRig unrecorded(kShape, NewTestBackend(), kMaxRows);
  const std::vector<int> counts = {20, 1, 1, 1, 1};
  const std::vector<float> expected =
      Steps(&unrecorded, unrecorded.AddStream(Plan("full")), counts);
  for (const bool at_begin : {true, false}) {
    cuda::emulated.captures_fail_to_begin = at_begin;
    cuda::emulated.captures_fail_to_end = !at_begin;
    AttentionRig rig(kShape, NewTestBackend(), kMaxRows);
    EXPECT_EQ(Steps(&rig, rig.AddStream(Plan("full")), counts), expected) << at_begin;
    EXPECT_TRUE(rig.backend()->status().ok()) << rig.backend()->status();
  }
}

TEST_F(DeviceErrors, OfALaunchOrOfTheDeviceEndTheBackend) {
  const AttentionShape wide = {
      .name = "wide", .head_dim = 128, .page_tokens = 64, .trained_length = 512};
  AttentionRig refused(wide, NewTestBackend(), kMaxRows);
  cuda::emulated.max_shared_bytes = 0;  // a tile of queries needs more
  const int64_t width = (wide.num_heads + 2 * wide.num_kv_heads) * wide.head_dim;
  refused.AddStream(Plan("full", wide));
  std::mt19937_64 random(7);
  const std::vector<float> qkv = RandomFloats(20 * width, &random);
  refused.Step({{0, 20}}, {qkv, qkv});
  EXPECT_EQ(refused.backend()->status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(refused.backend()->status().message().find("invalid argument"), std::string::npos);

  const int stream = rig_.AddStream(Plan("full"));
  Steps(&rig_, stream, {20});
  EXPECT_TRUE(backend_->status().ok());
  cuda::FailEmulatedDevice();
  Steps(&rig_, stream, {1});
  EXPECT_EQ(backend_->status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(backend_->status().message().find("illegal memory access"), std::string::npos);
}

}  // namespace
}  // namespace folio::test
