// A model of known shape with random weights on the backend under test and on the CPU: a prompt in
// pieces, then an answer token by token. The bundle for GPUs runs the 7B shape, the emulated device
// a tiny one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include "engine/attention/attention_registry.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/model/synthetic_model.h"
#include "engine/runtime/loaded_model.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kAnswer = 4;
// Of a chunk's score beside 1 + |score|: chunks as near to each other may change places.
constexpr float kScoreError = 3e-2f;

struct Case {
  const char* name;
  const char* model;
  const char* strategy;
  int prompt_tokens;
  int step_tokens;
  // Of logits, as a vector. Operands of products are rounded to bf16 on the device: 1.8e-3 in the
  // tiny shape, most of it in the output head. Without attention: 5e-3 to 8e-3, and 5e-2 in the
  // shape of 7B.
  double max_error;
};
const Case kCases[] = {
    {"tiny_full", "synthetic:tiny/2", "full", 200, 96, 2.5e-3},
    {"tiny_lm_infinite", "synthetic:tiny/2", "lm_infinite", 400, 96, 2.5e-3},
    {"tiny_long_heads", "synthetic:tiny/2", "long_heads", 400, 96, 2.5e-3},
    // Longer than the trained length, so that chunks are chosen.
    {"llama_2_7b_full", "synthetic:llama-2-7b/2", "full", 4000, 2048, 6e-3},
    {"llama_2_7b_lm_infinite", "synthetic:llama-2-7b/2", "lm_infinite", 6000, 2048, 6e-3},
    {"llama_2_7b_long_heads", "synthetic:llama-2-7b/2", "long_heads", 6000, 2048, 6e-3},
};

class ModelParity : public testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<LoadedModel> Load(std::unique_ptr<Backend> backend) {
    const int pages = GetParam().prompt_tokens / 64 + 4;
    EngineOptions options;
    options.model_dir = GetParam().model;
    options.kv_dtype = "bf16";
    options.page_tokens = 64;
    options.kv_bytes = int64_t{1} << 20;
    options.step_tokens = options.prefill_share_tokens = GetParam().step_tokens;
    options.max_running_requests = 1;
    const auto config = SyntheticConfig(options.model_dir);
    if (config.ok()) {
      options.kv_bytes = pages * KvGeometry::Make(config->shape, 64, DType::kBf16).frame_bytes();
    }
    auto model = LoadModel(options, /*tokenizer_required=*/false, std::move(backend));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }
  // With fp32 operands, whatever this CPU has.
  static std::unique_ptr<Backend> Reference() {
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return *CreateCpuBackend({.num_threads = threads, .isa = std::min(BestIsa(), Isa::kAvx512)});
  }

  // The next tokens: logits of the last one, and what it chose.
  struct Row {
    std::vector<float> logits;
    ChunkPicks picks;
  };
  static Row Step(LoadedModel* model, Stream* stream, std::span<const int32_t> tokens) {
    const int count = static_cast<int>(tokens.size());
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back(stream->Next(0, count));
    const auto picks = std::make_shared<ChunkPicks>();
    batch.slices[0].picks = picks;
    EXPECT_TRUE(model->transformer->Reserve(batch.slices[0], /*first=*/true).ok());
    const int last = count - 1;
    const auto logits = model->transformer->Forward(batch, tokens, std::span(&last, 1));
    stream->Done(count);
    return {{logits.begin(), logits.end()}, *picks};
  }

  // The same chunks, but for those whose scores are as near as rounding can bring them.
  static int DifferentPicks(const ChunkPicks& a, const ChunkPicks& b) {
    EXPECT_EQ(a.picks.size(), b.picks.size());
    int different = 0;
    for (size_t n = 0; n < std::min(a.picks.size(), b.picks.size()); ++n) {
      const float apart = std::abs(a.picks[n].score - b.picks[n].score);
      if (!(apart <= kScoreError * (1 + std::abs(b.picks[n].score)))) ++different;
    }
    return different;
  }
};

TEST_P(ModelParity, LogitsAndChosenChunks) {
  const Case& one = GetParam();
  const auto tested = Load(NewTestBackend());
  const auto reference = Load(Reference());
  ASSERT_TRUE(tested && reference);
  const int64_t all = one.prompt_tokens + kAnswer;
  const auto spec =
      ResolveAttention({{one.strategy, {}}, {}}, {}, reference->attention, {all, false});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const AttentionPlan plan = PlanFor(*spec, reference->attention, one.prompt_tokens);
  const std::vector<int32_t> tokens =
      RandomTokens(static_cast<int>(all), reference->config.shape.vocab_size, 11);
  Stream on_device(tested.get(), plan);
  Stream on_cpu(reference.get(), plan);
  bool chose = false;
  for (int64_t n = 0; n < all;) {
    const int64_t count =
        n < one.prompt_tokens ? std::min<int64_t>(one.step_tokens, one.prompt_tokens - n) : 1;
    const std::span part(tokens.data() + n, static_cast<size_t>(count));
    const Row got = Step(tested.get(), &on_device, part);
    const Row expected = Step(reference.get(), &on_cpu, part);
    ASSERT_TRUE(tested->backend->status().ok()) << tested->backend->status();
    n += count;
    const double error = RelativeError(got.logits, expected.logits);
    std::printf("%s: after %ld tokens, relative error of logits %.2e\n", one.name, long(n), error);
    EXPECT_LE(error, one.max_error) << "after " << n << " tokens";
    EXPECT_EQ(DifferentPicks(got.picks, expected.picks), 0) << "after " << n << " tokens";
    chose |= std::any_of(expected.picks.picks.begin(), expected.picks.picks.end(),
                         [](const ChunkPicks::Pick& pick) { return pick.chunk >= 0; });
  }
  EXPECT_EQ(chose, plan.selection.enabled());
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModelParity, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace folio::test
