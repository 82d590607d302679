// Whole answers of the bundled model on the backend under test and on the CPU, both in fp32: greedy
// and sampled, under three strategies, all in one batch.
#include <variant>

#include "engine/attention/attention_registry.h"
#include "engine/runtime/transformer_runner.h"
#include "gtest/gtest.h"
#include "tests/cuda/parity_rig.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kAnswer = 24;

class Collector final : public EventSink {
 public:
  void OnEvent(Event event) override {
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      tokens.insert(tokens.end(), delta->tokens.begin(), delta->tokens.end());
      for (const TokenLogprob& one : delta->logprobs) logprobs.push_back(one.logprob);
    }
    if (auto* evidence = std::get_if<EvidenceEvent>(&event)) spans = evidence->spans.size();
    completed = completed || std::holds_alternative<CompletedEvent>(event);
  }
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  size_t spans = 0;
  bool completed = false;
};

std::vector<GenerateSpec> Specs(const LoadedModel& model) {
  std::vector<GenerateSpec> specs;
  int seed = 0;
  int num_strategies = 0;
  for (const char* strategy : {"full", "lm_infinite", "long_heads"}) {
    int num_samplings = 0;
    ++num_strategies;
    for (const SamplingParams& sampling :
         {SamplingParams{}, SamplingParams{.temperature = 0.8f, .top_k = 50, .top_p = 0.9f},
          SamplingParams{.temperature = 1.0f, .repetition_penalty = 1.2f}}) {
      if (++num_samplings != num_strategies && !RunsSlowCases()) continue;
      GenerateSpec& spec = specs.emplace_back();
      const int length = strategy == std::string("full") ? 120 : 300 + 11 * seed;
      spec.tokens = RandomTokens(length, model.config.shape.vocab_size, 40 + ++seed);
      spec.sampling = sampling;
      spec.sampling.seed = seed;
      spec.stop.max_new_tokens = kAnswer - seed;
      spec.stop.ignore_eos = true;
      spec.logprobs = true;
      spec.max_evidence_spans = strategy == std::string("long_heads") ? 3 : 0;
      spec.attention =
          *ResolveAttention({{strategy, {}}, {}}, {}, model.attention, {length + kAnswer, false});
    }
  }
  return specs;
}

std::vector<Collector> Answers(std::unique_ptr<Backend> backend, int64_t kv_host_bytes = 0) {
  EngineOptions options;
  options.model_dir = TestData("../models/folio-tiny");
  options.kv_dtype = "fp32";
  // With pages on the host: frames for what a step writes and for a window.
  options.kv_bytes = int64_t{kv_host_bytes > 0 ? 14 : 64} << 20;
  options.kv_host_bytes = kv_host_bytes;
  options.max_running_requests = 16;
  options.step_tokens = kv_host_bytes > 0 ? 128 : 512;
  const auto model = LoadModel(options, /*tokenizer_required=*/true, std::move(backend));
  EXPECT_TRUE(model.ok()) << model.status();
  TransformerRunner runner((*model)->transformer.get());
  DocumentDirectory directory({});
  EngineLoop loop({.scheduler = {options.step_tokens, options.step_tokens / 2, 64},
                   .model = (*model)->attention,
                   .max_running_requests = 16,
                   .vocab_size = (*model)->config.shape.vocab_size},
                  (*model)->store.get(), &runner, &directory);
  const std::vector<int32_t> no_eos;
  std::vector<std::shared_ptr<Collector>> sinks;
  for (GenerateSpec& spec : Specs(**model)) {
    sinks.push_back(std::make_shared<Collector>());
    loop.Submit(sinks.size(), std::make_unique<Generation>(std::move(spec), sinks.back(),
                                                           *(*model)->tokenizer, no_eos));
  }
  while (loop.RunStep()) {
  }
  if (kv_host_bytes > 0) {
    EXPECT_GT((*model)->store->reads().misses, 0);
  }
  std::vector<Collector> answers;
  for (const auto& sink : sinks) answers.push_back(std::move(*sink));
  return answers;
}

TEST(AnswerParity, OfTheBundledModelInFp32) {
  const std::vector<Collector> expected = Answers(ReferenceBackend());
  const std::vector<Collector> got = Answers(NewTestBackend());
  ASSERT_EQ(expected.size(), RunsSlowCases() ? 9u : 3u);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t n = 0; n < expected.size(); ++n) {
    SCOPED_TRACE(n);
    ASSERT_TRUE(expected[n].completed);
    ASSERT_TRUE(got[n].completed);
    EXPECT_EQ(got[n].tokens, expected[n].tokens);
    EXPECT_EQ(got[n].spans, expected[n].spans);
    ASSERT_EQ(got[n].logprobs.size(), expected[n].logprobs.size());
    for (size_t i = 0; i < got[n].logprobs.size(); ++i) {
      EXPECT_NEAR(got[n].logprobs[i], expected[n].logprobs[i], 1e-3f);
    }
  }
}

// Steps are planned before those before them are finished, and pages leave the device in between.
TEST(AnswerParity, OfPagesInTheMemoryOfTheHost) {
  const std::vector<Collector> expected = Answers(ReferenceBackend());
  const std::vector<Collector> got = Answers(NewTestBackend(), int64_t{32} << 20);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t n = 0; n < expected.size(); ++n) {
    ASSERT_TRUE(got[n].completed);
    EXPECT_EQ(got[n].tokens, expected[n].tokens) << "request " << n;
    EXPECT_EQ(got[n].spans, expected[n].spans);
  }
}

}  // namespace
}  // namespace folio::test
