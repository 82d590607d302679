// What the engine makes of its options.
#include "engine/runtime/loaded_model.h"

#include "gtest/gtest.h"

namespace folio {
namespace {

EngineOptions Options(int step_tokens, int prefill_share_tokens) {
  EngineOptions options;
  options.model_dir = "synthetic:tiny";
  options.num_threads = 1;
  options.kv_bytes = int64_t{1} << 24;
  options.step_tokens = step_tokens;
  options.prefill_share_tokens = prefill_share_tokens;
  return options;
}

TEST(StepSizes, OfTheDeviceWhereNoneAreGiven) {
  const auto model = LoadModel(Options(0, 0));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->scheduler.step_tokens, (*model)->backend->usual_step_rows());
  EXPECT_EQ((*model)->scheduler.prefill_share_tokens, (*model)->scheduler.step_tokens / 2);
}

TEST(StepSizes, AsGiven) {
  const auto model = LoadModel(Options(100, 0));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->scheduler.step_tokens, 100);
  EXPECT_EQ((*model)->scheduler.prefill_share_tokens, 50);
  EXPECT_LE((*model)->scheduler.score_rows, 100);
}

TEST(StepSizes, RefusedWithTheirName) {
  const auto share = LoadModel(Options(100, 101)).status();
  EXPECT_EQ(share.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(share.message().find("prefill_share_tokens is 101"), std::string::npos) << share;
  const auto steps = LoadModel(Options(15, 0)).status();
  EXPECT_EQ(steps.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(steps.message().find("step_tokens is 15"), std::string::npos) << steps;
  EngineOptions many = Options(32, 0);
  many.max_running_requests = 33;
  EXPECT_EQ(LoadModel(many).status().code(), absl::StatusCode::kInvalidArgument);
}

// The limit of kernels, said before anything is loaded.
TEST(PageTokens, AreBoundedByWhatEveryBackendHolds) {
  EngineOptions options = Options(0, 0);
  options.page_tokens = 256;
  EXPECT_TRUE(LoadModel(options).ok());
  for (const int page_tokens : {8, 24, 272, 512, 1024}) {
    options.page_tokens = page_tokens;
    const auto refused = LoadModel(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("must be a multiple of 16 in [16, 256]"), std::string::npos)
        << refused;
  }
}

}  // namespace
}  // namespace folio
