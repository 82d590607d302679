// The host's part of a step on the CUDA backend: which rows attend how, what a repeated step has in
// common with the one before it, and when it is recorded anew.
#include "engine/backend/cuda/step_image.h"

#include "engine/backend/cuda/emulated_runtime.h"
#include "engine/backend/cuda/step_graphs.h"
#include "engine/backend/cuda/tensor_shapes.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"

namespace folio::cuda {

namespace {

using test::AttentionShape;

class StepImageTest : public testing::Test {
 protected:
  explicit StepImageTest(DType dtype = DType::kBf16) {
    shape_.dtype = dtype;
    setup_.geometry = shape_.geometry();
    setup_.rotary.theta.assign(shape_.head_dim / 2, 0.1f);
    setup_.max_step_rows = 512;
    geometry_.num_layers = shape_.num_layers;
    geometry_.num_heads = shape_.num_heads;
    geometry_.num_kv_heads = shape_.num_kv_heads;
    geometry_.head_dim = geometry_.dim = geometry_.key_dim = shape_.head_dim;
    geometry_.page_tokens = shape_.page_tokens;
    geometry_.cache = dtype == DType::kBf16 ? Cache::kBf16 : Cache::kF32;
    image_ = std::make_unique<StepImage>(memory_.get(), setup_, geometry_);
  }

  const AttentionPlan& Plan(const std::string& strategy, int64_t prompt_tokens,
                            ParamList params = {}) {
    const AttentionModel model = shape_.model();
    const auto spec = ResolveAttention({{strategy, std::move(params)}, {}}, {}, model, {});
    EXPECT_TRUE(spec.ok()) << spec.status();
    plans_.push_back(std::make_unique<AttentionPlan>(PlanFor(*spec, model, prompt_tokens)));
    return *plans_.back();
  }

  void AddSlice(StepBatch* batch, const AttentionPlan& plan, int64_t position, int count) {
    SequenceSlice& slice = batch->slices.emplace_back();
    slice.row_begin = batch->num_rows;
    slice.num_rows = count;
    slice.first_position = position;
    slice.plan = &plan;
    slice.pages = std::span(frames_).first((position + count - 1) / shape_.page_tokens + 1);
    slice.sinks = slice.summaries = slice.pending_queries = frames_;
    batch->num_rows += count;
    batch->tokens.resize(batch->num_rows, 0);
  }

  const StepShape& Build(const StepBatch& batch) {
    EXPECT_TRUE(image_
                    ->Build(batch, StepImage::Repeats(batch),
                            std::vector<EvidencePick*>(batch.slices.size(), nullptr))
                    .ok());
    memory_->Finish();
    return image_->shape();
  }

  AttentionShape shape_;
  AttentionSetup setup_;
  Geometry geometry_ = {};
  std::unique_ptr<CudaMemory> memory_ = *CudaMemory::Open(0);
  std::unique_ptr<StepImage> image_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<FrameId> frames_ = std::vector<FrameId>(1000, 0);
};

TEST_F(StepImageTest, BatchesArePaddedToBuckets) {
  EXPECT_EQ(StepImage::BucketOf(1, 512), 1);
  EXPECT_EQ(StepImage::BucketOf(5, 512), 6);
  EXPECT_EQ(StepImage::BucketOf(64, 512), 64);
  EXPECT_EQ(StepImage::BucketOf(65, 512), 96);
  EXPECT_EQ(StepImage::BucketOf(65, 70), 70);     // no more than there is room for
  EXPECT_EQ(StepImage::BucketOf(300, 512), 300);  // too large to be repeated
}

TEST_F(StepImageTest, APlanOfMoreStagesThanKernelsTakeIsRefused) {
  AttentionPlan plan = Plan("full", 100);
  plan.stages.resize(kMaxStages + 1);
  StepBatch batch;
  AddSlice(&batch, plan, 10, 1);
  const absl::Status status = image_->Build(batch, false, {nullptr});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("5 stages"), std::string::npos) << status;
}

TEST_F(StepImageTest, OnlyStepsOfAnswersRepeat) {
  StepBatch answers;
  AddSlice(&answers, Plan("full", 100), 100, 1);
  AddSlice(&answers, Plan("long_heads", 100), 200, 1);
  EXPECT_TRUE(StepImage::Repeats(answers));

  StepBatch prompt = answers;
  AddSlice(&prompt, Plan("full", 100), 40, 30);
  EXPECT_FALSE(StepImage::Repeats(prompt));

  StepBatch completes;  // a chunk of 32 tokens
  AddSlice(&completes, Plan("long_heads", 100, {{"chunk_size", 32}}), 255, 1);
  EXPECT_FALSE(StepImage::Repeats(completes));
}

TEST_F(StepImageTest, LaterStepsOfTheSameStreamsHaveTheSameShapeUntilASizeDoubles) {
  const AttentionPlan& full = Plan("full", 100);
  const AttentionPlan& chunks = Plan("long_heads", 100, {{"chunk_size", 32}});
  const auto shape_at = [&](int64_t position) {
    StepBatch batch;
    AddSlice(&batch, full, position, 1);
    AddSlice(&batch, chunks, position, 1);
    return Build(batch);
  };
  const StepShape first = shape_at(600);
  EXPECT_EQ(shape_at(601), first);
  EXPECT_EQ(shape_at(900), first);
  EXPECT_NE(shape_at(3000), first);
  EXPECT_EQ(first.num_tensor_rows, first.num_rows);
  EXPECT_EQ(first.num_tiles, 0);
}

TEST_F(StepImageTest, PromptsGoIntoTilesThatEndWithTheirChunk) {
  StepBatch batch;
  AddSlice(&batch, Plan("long_heads", 1000, {{"chunk_size", 32}}), 600, 100);
  const StepShape& shape = Build(batch);
  EXPECT_EQ(shape.num_tensor_rows, 0);
  EXPECT_EQ(shape.num_choosing_rows, 100);
  // 600..607, three whole chunks of 32 (a tile has room for 64 rows of two heads), 704..699.
  ASSERT_EQ(shape.num_tiles, 4);
  const Tile* tiles = image_->step().tiles;
  int rows = 0;
  for (int n = 0; n < shape.num_tiles; ++n) {
    EXPECT_EQ(tiles[n].row_begin, rows);
    const int64_t first = 600 + rows;
    rows += tiles[n].num_rows;
    EXPECT_EQ(first / 32, (600 + rows - 1) / 32) << "tile " << n;
  }
  EXPECT_EQ(rows, 100);
}

TEST_F(StepImageTest, RowsThatChooseTokensAttendByThemselves) {
  StepBatch batch;
  AddSlice(&batch, Plan("lm_infinite", 700, {{"top_tokens", 5}}), 600, 100);
  const StepShape& shape = Build(batch);
  EXPECT_EQ(shape.num_plain_rows, 1);
  EXPECT_EQ(image_->step().plain_rows.rows[0], 99);  // the last one of the prompt
  EXPECT_GT(shape.num_tiles, 0);
}

TEST_F(StepImageTest, FewRowsStayOutOfTilesAndThoseOfRawKeysOffTensorCores) {
  StepBatch batch;
  AddSlice(&batch, Plan("rerope", 1000), 600, 40);
  AddSlice(&batch, Plan("rerope", 1000), 600, 7);
  AddSlice(&batch, Plan("full", 1000), 600, 5);
  const StepShape& shape = Build(batch);
  EXPECT_EQ(shape.num_tiles, 1);
  EXPECT_EQ(shape.num_plain_rows, 7);
  EXPECT_EQ(shape.num_tensor_rows, 5);
}

class Fp32StepImage : public StepImageTest {
 protected:
  Fp32StepImage() : StepImageTest(DType::kF32) {}
};

TEST_F(Fp32StepImage, AttendsWithoutTensorCores) {
  EXPECT_FALSE(HasTensorShape(geometry_));
  StepBatch batch;
  AddSlice(&batch, Plan("full", 1000), 600, 40);
  EXPECT_EQ(Build(batch).num_plain_rows, 40);
}

TEST_F(StepImageTest, AShapeIsRunThenRecordedThenReplayed) {
  StepGraphs graphs(memory_.get());
  int launches = 0;
  const auto launch = [&] { ++launches; };
  StepShape shape;
  for (int n = 0; n < 5; ++n) graphs.Run(shape, launch);
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(graphs.num_replays(), 3);
  shape.num_rows = 7;  // another one does not share it
  graphs.Run(shape, launch);
  EXPECT_EQ(launches, 3);
  memory_->NoteMove();  // what kernels were told lies elsewhere now
  graphs.Run(shape, launch);
  graphs.Run(shape, launch);
  EXPECT_EQ(launches, 5);
  for (int rows = 0; rows < 500; ++rows) {  // more than are kept
    shape.num_rows = rows;
    graphs.Run(shape, launch);
  }
  EXPECT_EQ(launches, 505 - 1);
}

TEST_F(StepImageTest, WhereStepsCannotBeRecordedTheyRunAsTheyAre) {
  StepGraphs graphs(memory_.get());
  int launches = 0;
  emulated.captures_fail_to_end = true;
  for (int n = 0; n < 4; ++n) graphs.Run({}, [&] { ++launches; });
  emulated.captures_fail_to_end = false;
  EXPECT_FALSE(graphs.records());
  EXPECT_EQ(graphs.num_replays(), 0);
  EXPECT_EQ(launches, 4 + 1);  // what was recorded in vain is launched again
  EXPECT_TRUE(memory_->status().ok());
}

}  // namespace
}  // namespace folio::cuda
