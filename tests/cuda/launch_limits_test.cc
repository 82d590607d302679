// Shapes that are legal and large: every launch stays within the limits of the device.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/cuda/emulated_runtime.h"
#include "engine/backend/cuda/kernels.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Scorer = ChunkSelection::Scorer;

class LaunchLimits : public testing::Test {
 protected:
  // The least that a device of compute capability 8.0 or newer has.
  LaunchLimits() { cuda::emulated.max_shared_bytes = cuda::kSharedBytesSm86; }
  ~LaunchLimits() override { cuda::ResetEmulatedDevice(); }

  // Representations of the first chunks of a prompt, in the layout of a summary frame.
  static std::vector<float> Summaries(std::unique_ptr<Backend> backend, const KvGeometry& geometry,
                                      const AttentionPlan& plan, const std::vector<int>& pieces,
                                      const std::vector<float>& qkv) {
    const auto store = *KvStore::Create(geometry, int64_t{8} << 20, backend->memory());
    AttentionSetup setup;
    setup.geometry = geometry;
    setup.pages = store->page_memory();
    setup.frames = store->frame_memory();
    setup.summaries = store->summary_memory();
    for (int m = 0; m < geometry.head_dim / 2; ++m) {
      setup.rotary.theta.push_back(
          static_cast<float>(std::pow(10000.0, -2.0 * m / geometry.head_dim)));
    }
    setup.max_step_rows = *std::max_element(pieces.begin(), pieces.end());
    setup.max_logit_rows = 1;
    EXPECT_TRUE(backend->SetupAttention(setup).ok());
    const int64_t width = (geometry.num_heads + 2 * geometry.num_kv_heads) * geometry.head_dim;
    const BufferOf<float> input = Upload(backend.get(), qkv);
    SequenceKv kv;
    int64_t done = 0;
    for (const int count : pieces) {
      EXPECT_TRUE(store->Extend(plan, done, count, &kv).ok());
      StepBatch batch;
      batch.num_rows = count;
      batch.tokens.assign(count, 0);
      SequenceSlice& slice = batch.slices.emplace_back();
      slice.num_rows = count;
      slice.first_position = done;
      slice.plan = &plan;
      slice.pages = kv.pages;
      slice.summaries = kv.summaries;
      slice.pending_queries = kv.pending_queries;
      EXPECT_TRUE(backend->Reserve(slice, true).ok());
      std::vector<Sample> samples;
      const float* rows = input.data() + done * width;
      backend->RunStep(
          batch,
          [&](const StepBatch& step) {
            backend->StoreKv(step, 0, rows);
            backend->SummarizeChunks(step, 0, rows);
          },
          &samples);
      EXPECT_TRUE(backend->status().ok()) << backend->status();
      done += count;
    }
    const auto* frame =
        reinterpret_cast<const float*>(store->summary_memory().Frame(kv.summaries[0]));
    const std::span<const float> values =
        backend->memory()->Read(frame, geometry.summary_frame_bytes() / 4);
    std::vector<float> result;
    for (int d = 0; d < geometry.head_dim; ++d) result.push_back(values[d * kTile]);
    store->Release(&kv);
    return result;
  }
};

// A chunk whose weights would not fit into the shared memory of a block.
TEST_F(LaunchLimits, ChunksAreAsLongAsTheyLike) {
  constexpr int kChunk = 2816;
  const KvGeometry geometry{.num_layers = 1,
                            .num_heads = 1,
                            .num_kv_heads = 1,
                            .head_dim = 16,
                            .padded_dim = 16,
                            .page_tokens = 64,
                            .dtype = DType::kF32};
  std::mt19937_64 random(11);
  const std::vector<float> qkv = RandomFloats(kChunk * 3 * geometry.head_dim, &random);
  for (const Scorer scorer :
       {Scorer::kLongHeads, Scorer::kMeanKey, Scorer::kQuest, Scorer::kRepresentatives}) {
    AttentionPlan plan;
    plan.stages.push_back(
        {.keys = AttentionStage::Keys::kChunks, .distance = AttentionStage::Distance::kCompacted});
    plan.selection = {.chunk_tokens = kChunk, .num_free_picks = 1, .scorer = scorer};
    const std::vector<int> pieces = {1000, kChunk - 1000};
    EXPECT_LE(RelativeError(Summaries(NewTestBackend(), geometry, plan, pieces, qkv),
                            Summaries(ReferenceBackend(), geometry, plan, pieces, qkv)),
              1e-4)
        << static_cast<int>(scorer);
  }
}

// Pages of 256 tokens and 256 dimensions, for eight heads at once.
TEST_F(LaunchLimits, PagesAndHeadsAreAsLargeAsTheyLike) {
  const AttentionShape shape = {.name = "wide",
                                .head_dim = 256,
                                .num_heads = 8,
                                .num_kv_heads = 1,
                                .page_tokens = 256,
                                .dtype = DType::kF32,
                                .trained_length = 1024,
                                .num_layers = 1};
  AttentionRig reference(shape, ReferenceBackend(), 256);
  AttentionRig tested(shape, NewTestBackend(), 256);
  const AttentionModel model = shape.model();
  for (const char* strategy : {"full", "sliding_window"}) {
    const auto spec = ResolveAttention({{strategy, {}}, {}}, {}, model, {2000, false});
    ASSERT_TRUE(spec.ok()) << spec.status();
    AttentionPlan plan = PlanFor(*spec, model, 150);
    if (plan.stages[0].band_end != kUnbounded) plan.stages[0].band_end = 100;
    reference.AddStream(plan);
    tested.AddStream(plan);
  }
  std::mt19937_64 random(12);
  const int64_t width = int64_t{10} * shape.head_dim;
  for (const int count : {70, 70, 10, 1}) {  // beyond 128 tokens of a page
    const std::vector<AttentionRig::Part> parts = {{0, count}, {1, count}};
    const std::vector<std::vector<float>> qkv = {RandomFloats(2 * count * width, &random)};
    EXPECT_LE(RelativeError(tested.Step(parts, qkv), reference.Step(parts, qkv)), 1e-5);
  }
}

TEST_F(LaunchLimits, AStepMayHave65536Rows) {
  const auto backend = NewTestBackend();
  constexpr int kRows = 65536;
  std::mt19937_64 random(13);
  const std::vector<float> x = RandomFloats(kRows * 8, &random);
  const BufferOf<float> on_x = Upload(backend.get(), x);
  const BufferOf<float> out = Poisoned(backend.get(), kRows * 4);
  backend->SwiGlu(on_x.data(), kRows, 4, out.data());
  const std::vector<float> got = Download(backend.get(), out);
  ASSERT_TRUE(backend->status().ok()) << backend->status();
  for (const int row : {0, kRows - 1}) {
    const float gate = x[row * 8];
    EXPECT_NEAR(got[row * 4], gate / (1 + std::exp(-gate)) * x[row * 8 + 4], 1e-5f);
  }
}

// More candidates than a grid has blocks for: 65,535 times 64. All pages are one frame, and all
// representations another, so that candidates repeat.
TEST_F(LaunchLimits, ChoicesAreOfAsManyCandidatesAsThereAre) {
  constexpr int64_t kCandidates = int64_t{65535} * 64 + 1000;
  constexpr int kPage = 4096;
  constexpr int kChunk = kPage;
  constexpr int kPad = 16;
  std::mt19937_64 random(14);
  std::vector<float> frame = RandomFloats(2 * kPage * kPad, &random);
  std::vector<float> summaries = RandomFloats(kPad * kTile, &random);
  const std::vector<float> qkv = RandomFloats(3 * 2, &random);
  const std::vector<float> fixed = {1.0f, 0.0f};  // no rotation
  const std::vector<int> frames(kCandidates / kTile + 2, 0);
  std::vector<float> scores(kCandidates);

  cuda::Geometry g = {};
  g.num_layers = g.num_heads = g.num_kv_heads = 1;
  g.head_dim = 2;
  g.dim = g.key_dim = kPad;
  g.page_tokens = kPage;
  g.key_bytes = kPage * kPad * 4;
  g.kv = reinterpret_cast<const unsigned char*>(frame.data());
  g.summaries = reinterpret_cast<unsigned char*>(summaries.data());
  cuda::Slice slice = {};
  slice.num_rows = 1;
  slice.pages = slice.summaries = frames.data();
  slice.num_stages = 1;
  slice.stages[0].rows_end = std::numeric_limits<int64_t>::max();
  slice.stages[0].fixed = fixed.data();
  const int of_row = 0;
  cuda::Step step = {};
  step.num_rows = 1;
  step.slices = &slice;
  step.slice_of_row = &of_row;
  const cuda::ChooseArgs args = {0, 1, scores.data(), kCandidates};
  const auto memory = *cuda::CudaMemory::Open(0);

  slice.stages[0].keys = cuda::Stage::kTopTokens;
  slice.top_tokens = {.count = 1, .all_rows = true};
  slice.first_position = kCandidates - 1;
  scores.assign(kCandidates, std::nanf(""));
  cuda::ScoreTokens(memory->stream(), g, step, args, 0, qkv.data());
  memory->Finish();
  ASSERT_TRUE(memory->status().ok()) << memory->status();
  for (int64_t c = 0; c < kCandidates; ++c) ASSERT_EQ(scores[c], scores[c % kPage]) << c;

  slice.stages[0].keys = cuda::Stage::kChunks;
  slice.top_tokens = {};
  slice.selection = {.chunk_tokens = kChunk, .num_free_picks = 1};
  slice.first_position = (kCandidates + 2) * kChunk;  // chunks 1 .. kCandidates compete
  scores.assign(kCandidates, std::nanf(""));
  cuda::ScoreChunks(memory->stream(), g, step, args, 0, qkv.data());
  memory->Finish();
  ASSERT_TRUE(memory->status().ok()) << memory->status();
  for (int64_t c = 0; c < kCandidates; ++c) ASSERT_EQ(scores[c], scores[c % kTile]) << c;
}

}  // namespace
}  // namespace folio::test
