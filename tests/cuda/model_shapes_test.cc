// Shapes of a real model, and a cache of more bytes than 32 bits count.
#include "engine/backend/cuda/emulated_runtime.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kMaxRows = 180;

class ModelShapes : public testing::Test {
 protected:
  ~ModelShapes() override { cuda::ResetEmulatedDevice(); }

  static AttentionPlan Plan(const AttentionShape& shape, const std::string& strategy,
                            int64_t prompt_tokens, const ParamList& params = {}) {
    const auto spec = ResolveAttention({{strategy, params}, {}}, {}, shape.model(), {2000, false});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, shape.model(), prompt_tokens);
  }
  static void ExpectEqualSteps(const AttentionShape& shape, AttentionRig* reference,
                               AttentionRig* tested,
                               const std::vector<std::vector<AttentionRig::Part>>& steps) {
    std::mt19937_64 random(21);
    const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    for (const auto& parts : steps) {
      int rows = 0;
      for (const auto& part : parts) rows += part.count;
      const std::vector<std::vector<float>> qkv = {RandomFloats(rows * width, &random)};
      EXPECT_LE(RelativeError(tested->Step(parts, qkv), reference->Step(parts, qkv)), 1e-2)
          << rows << " rows";
    }
  }
};

// Llama 2 7B has 32 heads of 128 dimensions, each with its own keys.
TEST_F(ModelShapes, ThirtyTwoHeadsOf128Dimensions) {
  const AttentionShape shape = {.name = "7b",
                                .head_dim = 128,
                                .num_heads = 32,
                                .num_kv_heads = 32,
                                .page_tokens = 64,
                                .trained_length = 384,
                                .num_layers = 1};
  AttentionRig reference(shape, ReferenceBackend(), kMaxRows, int64_t{64} << 20);
  AttentionRig tested(shape, NewTestBackend(), kMaxRows, int64_t{64} << 20);
  for (AttentionRig* rig : {&reference, &tested}) {
    rig->AddStream(Plan(shape, "full", 70));
    rig->AddStream(Plan(shape, "lm_infinite", 20));
  }
  ExpectEqualSteps(shape, &reference, &tested,
                   {{{0, 70}, {1, 20}}, {{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}});
}

TEST_F(ModelShapes, IntegerWeightsAreRefused) {
  const auto backend = NewTestBackend();
  const std::vector<float> weights(64 * 64, 1.0f);
  TensorView view;
  view.data = weights.data();
  view.rank = 2;
  view.shape[0] = view.shape[1] = 64;
  for (const auto codec : {WeightFormat::Codec::kInt8, WeightFormat::Codec::kInt4}) {
    const WeightFormat format = {codec, 32};
    for (const absl::Status& status : {backend->Pack(std::span(&view, 1), format).status(),
                                       backend->PackRandom(64, 64, 1, 0.1f, format).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("--weight-dtype"), std::string::npos) << status;
    }
  }
}

// Pages, chunk summaries and pending queries beyond 4 GiB of their pools.
TEST_F(ModelShapes, FramesBeyond4GiB) {
  const AttentionShape shape = {.name = "mqa",
                                .head_dim = 128,
                                .num_heads = 64,
                                .num_kv_heads = 1,
                                .page_tokens = 32,
                                .trained_length = 256,
                                .num_layers = 1};
  const KvGeometry geometry = shape.geometry();
  constexpr int64_t kBytes = int64_t{5} << 30;
  constexpr int64_t kSkipped = (int64_t{4} << 30) + (int64_t{64} << 20);
  cuda::emulated.memory_bytes = 4 * kBytes;
  AttentionRig reference(shape, ReferenceBackend(), kMaxRows);
  AttentionRig tested(shape, NewTestBackend(), kMaxRows, kBytes);
  // With a chunk per page, the summaries of 64 heads take as much as the pages.
  AttentionPlan taken;
  taken.selection.chunk_tokens = shape.page_tokens;
  const int64_t num_pages = kSkipped / geometry.frame_bytes();
  ASSERT_GT(num_pages / kTile * geometry.summary_frame_bytes(), int64_t{4} << 30);
  tested.TakeFrames(taken, num_pages * shape.page_tokens);
  for (AttentionRig* rig : {&reference, &tested}) {
    rig->AddStream(Plan(shape, "long_heads", 300, {{"chunk_size", shape.page_tokens}}));
    rig->AddStream(Plan(shape, "streaming", 10));
  }
  ExpectEqualSteps(shape, &reference, &tested,
                   {{{0, 160}, {1, 10}}, {{0, 140}, {1, 1}}, {{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}});
}

// What a row is does not depend on how many others there are: operands are rounded alike.
TEST_F(ModelShapes, ProductsRoundTheirOperandsWhateverTheNumberOfRows) {
  const auto backend = NewTestBackend();
  constexpr int kInputs = 264;
  constexpr int kOutputs = 40;
  constexpr int kRows = 6;
  std::mt19937_64 random(22);
  const std::vector<float> x = RandomFloats(kRows * kInputs, &random);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    // Either format: numbers around 1 with bits to spare.
    std::vector<uint16_t> weights(kOutputs * kInputs);
    for (uint16_t& weight : weights) {
      weight = static_cast<uint16_t>((dtype == DType::kBf16 ? 0x3f00 : 0x3800) + random() % 128);
    }
    TensorView view;
    view.data = weights.data();
    view.dtype = dtype;
    view.rank = 2;
    view.shape[0] = kOutputs;
    view.shape[1] = kInputs;
    const auto matrix = *backend->Pack(std::span(&view, 1), {});
    const BufferOf<float> on_x = Upload(backend.get(), x);
    const auto product = [&](int rows) {
      const BufferOf<float> y = Poisoned(backend.get(), rows * kOutputs);
      backend->MatMul(*matrix, on_x.data(), rows, {}, Backend::Output::kStore, y.data());
      return Download(backend.get(), y);
    };
    const std::vector<float> all = product(kRows);
    for (int rows = 1; rows < kRows; ++rows) {
      EXPECT_LE(RelativeError(product(rows), {all.begin(), all.begin() + rows * kOutputs}), 1e-5)
          << DTypeName(dtype) << ", " << rows << " of " << kRows << " rows";
    }
  }
}

}  // namespace
}  // namespace folio::test
