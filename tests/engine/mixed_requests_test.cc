// Requests under every legal pair of strategy and position scheme at the same time, against each of
// them alone; and several answers to one prompt, against each of them with a prompt of its own.
#include <algorithm>
#include <map>
#include <optional>
#include <string>

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
    Load(dir_.path() + "/model");
  }

  void Load(const std::string& model, const ModelOptions& options = {}) {
    loop_.reset();
    model_ = LoadTestModel(model, options);
    runner_ = std::make_unique<Runner>(model_->transformer.get());
    loop_ = std::make_unique<EngineLoop>(
        EngineLoopOptions{.scheduler = {std::min(256, options.step_tokens), 64, 64},
                          .model = model_->attention,
                          .max_running_requests = 64,
                          .vocab_size = vocab()},
        model_->store.get(), runner_.get(), &directory_);
  }

  int vocab() const { return model_->info.shape.vocab_size; }
  // As the front door does it.
  DocumentHandle Upload(const std::string& id, const AttentionSpec& attention, int num_tokens) {
    const DocumentHandle handle = directory_.Create(id, attention, nullptr)->handle;
    loop_->documents().Create(handle, attention);
    EXPECT_TRUE(directory_.AddTokens(handle, num_tokens).ok());
    loop_->documents().Append(handle, RandomTokens(num_tokens, vocab(), 7), num_tokens);
    EXPECT_TRUE(directory_.FinishUpload(handle).ok());
    loop_->documents().Finish(handle);
    RunUntilIdle();
    return handle;
  }
  void RunUntilIdle() {
    while (loop_->RunStep()) {
    }
  }
  // Under each pair, about a document where that is legal if one is wanted: several answers to one
  // prompt, whose seeds follow each other, are those of requests of their own.
  void ExpectSharedAsAlone(int document_tokens);

  // Every legal pair with defaults, prompts of different lengths, beyond the trained 128 tokens.
  std::vector<GenerateSpec> Specs() const {
    std::vector<GenerateSpec> specs;
    for (const AttentionStrategy* strategy : AllStrategies()) {
      for (const PositionScheme& scheme : AllPositionSchemes()) {
        GenerateSpec spec;
        const int length = 140 + static_cast<int>(37 * specs.size() % 211);
        spec.tokens = RandomTokens(length, vocab(), 100 + specs.size());
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

  RequestId last_id_ = 1 << 20;
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

void MixedRequests::ExpectSharedAsAlone(int document_tokens) {
  constexpr int kAnswers = 3;
  for (GenerateSpec& spec : Specs()) {
    SCOPED_TRACE(spec.attention.strategy.name + " " + spec.attention.position.name);
    std::optional<DocumentHandle> document;
    const AttentionPlan plan = PlanFor(spec.attention, model_->attention);
    const bool truncates = plan.truncation.enabled();
    // Pages of a window never leave the memory, and several need more of it.
    if (model_->store->tiered() && plan.retention.window_tokens != kUnbounded) continue;
    if (document_tokens > 0 && !truncates) {
      document = Upload("d", spec.attention, document_tokens);
    }
    spec.document = document;
    spec.sampling.temperature = 1;
    std::vector<std::shared_ptr<Collector>> alone;
    for (int n = 0; n < kAnswers; ++n) {
      spec.sampling.seed = 40 + n;
      alone.push_back(Submit(++last_id_, spec));
      RunUntilIdle();
    }
    const int64_t before = loop_->counters().prefill_tokens;
    std::vector<std::shared_ptr<Collector>> shared;
    spec.num_answers = kAnswers;
    for (int n = 0; n < kAnswers; ++n) {
      spec.sampling.seed = 40 + n;
      shared.push_back(Submit(++last_id_, spec));
      if (n == 0) spec.first_answer = last_id_;
    }
    RunUntilIdle();
    for (int n = 0; n < kAnswers; ++n) {
      ASSERT_TRUE(alone[n]->completed && shared[n]->completed);
      EXPECT_EQ(shared[n]->tokens.size(), static_cast<size_t>(kAnswer));
      EXPECT_EQ(shared[n]->tokens, alone[n]->tokens) << n;
    }
    EXPECT_NE(shared[0]->tokens, shared[1]->tokens) << "the seed means nothing";
    const int64_t computed = loop_->counters().prefill_tokens - before;
    const int64_t once = std::ssize(spec.tokens) - 1 + kAnswers;
    EXPECT_TRUE(truncates ? computed <= once : computed == once) << computed;
    if (document.has_value()) {
      EXPECT_TRUE(directory_.Remove(*document).ok());
      loop_->documents().Drop(*document, absl::NotFoundError("deleted"));
    }
  }
  EXPECT_EQ(model_->store->used_page_bytes() + model_->store->used_summary_bytes(), 0);
  EXPECT_EQ(model_->store->reserved_bytes(), 0);
}

TEST_F(MixedRequests, AnswersThatShareTheirPromptAreThoseOfEachAlone) {
  ExpectSharedAsAlone(0);
  ExpectSharedAsAlone(150);
}

TEST_F(MixedRequests, AnswersThatShareTheirPromptInPagesOfIntegers) {
  Load(dir_.path() + "/model", {.kv_dtype = "int8"});
  ExpectSharedAsAlone(0);
}

TEST_F(MixedRequests, AnswersThatShareTheirPromptOnDisk) {
  Load(dir_.path() + "/model",
       {.kv_bytes = 1100 << 10, .step_tokens = 64, .kv_dir = dir_.path() + "/kv"});
  ExpectSharedAsAlone(1000);
  EXPECT_GT(model_->store->reads().misses, 0) << "all of it was in memory";
}

TEST_F(MixedRequests, AnswersThatShareTheirPromptWithoutRotation) {
  Load(TestData("golden/families/mpt"));
  ASSERT_EQ(model_->attention.kind, PositionKind::kAlibi);
  ExpectSharedAsAlone(150);
}

}  // namespace
}  // namespace folio::test
