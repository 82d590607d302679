// Requests under every legal pair of strategy and position scheme at the same time, against each of
// them alone.
#include <map>

#include "engine/attention/attention_registry.h"
#include "engine/attention/strategy_registry.h"
#include "engine/runtime/transformer_runner.h"
#include "gtest/gtest.h"
#include "tests/engine/letter_tokenizer.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kVocab = 64;
constexpr int kAnswer = 12;

class Collector final : public EventSink {
 public:
  void OnEvent(Event event) override {
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      tokens.insert(tokens.end(), delta->tokens.begin(), delta->tokens.end());
    }
    completed = completed || std::holds_alternative<CompletedEvent>(event);
  }
  std::vector<int32_t> tokens;
  bool completed = false;
};

class Runner final : public TransformerRunner {
 public:
  using TransformerRunner::TransformerRunner;
  void Start(const std::vector<ScheduledTokens>& step) override {
    most_in_step = std::max(most_in_step, step.size());
    TransformerRunner::Start(step);
  }
  size_t most_in_step = 0;
};

class MixedRequests : public testing::Test {
 protected:
  MixedRequests() {
    WriteTinyModel({}, dir_.path() + "/model");
    model_ = LoadTestModel(dir_.path() + "/model");
    runner_ = std::make_unique<Runner>(model_->transformer.get());
    loop_ = std::make_unique<EngineLoop>(EngineLoopOptions{.scheduler = {256, 64, 64},
                                                           .model = model_->attention,
                                                           .max_running_requests = 64,
                                                           .vocab_size = kVocab},
                                         model_->store.get(), runner_.get(), &directory_);
  }

  // Every legal pair with defaults, prompts of different lengths, beyond the trained 128 tokens.
  std::vector<GenerateSpec> Specs() const {
    std::vector<GenerateSpec> specs;
    for (const AttentionStrategy* strategy : AllStrategies()) {
      for (const PositionScheme& scheme : AllPositionSchemes()) {
        GenerateSpec spec;
        const int length = 140 + static_cast<int>(37 * specs.size() % 211);
        spec.tokens = RandomTokens(length, kVocab, 100 + specs.size());
        spec.stop.max_new_tokens = kAnswer;
        spec.stop.ignore_eos = true;
        auto resolved = ResolveAttention({{strategy->name(), {}}, {scheme.name, {}}}, {},
                                         model_->attention, {length + kAnswer, false});
        if (!resolved.ok()) continue;
        spec.attention = *std::move(resolved);
        specs.push_back(std::move(spec));
      }
    }
    return specs;
  }

  std::shared_ptr<Collector> Submit(RequestId id, GenerateSpec spec) {
    auto sink = std::make_shared<Collector>();
    loop_->Submit(id, std::make_unique<Generation>(std::move(spec), sink, tokenizer_, kNoEos));
    return sink;
  }

  const std::vector<int32_t> kNoEos;
  LetterTokenizer tokenizer_{kVocab};
  ScratchDir dir_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Runner> runner_;
  DocumentDirectory directory_{{}};
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(MixedRequests, SixtyFourAtOnceAnswerAsEachAlone) {
  const std::vector<GenerateSpec> specs = Specs();
  EXPECT_GE(specs.size(), 45u);
  std::vector<std::shared_ptr<Collector>> together;
  for (RequestId id = 0; id < 64; ++id) together.push_back(Submit(id, specs[id % specs.size()]));
  while (loop_->RunStep()) {
  }
  EXPECT_GT(runner_->most_in_step, 32u);
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_TRUE(together[i]->completed) << i;
    const GenerateSpec& spec = specs[i % specs.size()];
    const auto alone = Submit(1000 + i, spec);
    while (loop_->RunStep()) {
    }
    EXPECT_EQ(alone->tokens.size(), static_cast<size_t>(kAnswer));
    EXPECT_EQ(together[i]->tokens, alone->tokens)
        << spec.attention.strategy.name << " " << spec.attention.position.name;
  }
  EXPECT_EQ(model_->store->used_page_bytes() + model_->store->used_summary_bytes(), 0);
  EXPECT_EQ(model_->store->reserved_bytes(), 0);
}

}  // namespace
}  // namespace folio::test
