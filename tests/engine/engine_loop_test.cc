// The serving loop with a fake model: admission, documents, cancellation, deadlines, failures.
#include "engine/runtime/engine_loop.h"

#include <atomic>
#include <random>

#include "engine/attention/strategy_registry.h"
#include "engine/runtime/engine_thread.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

constexpr int kVocab = 16;
AttentionModel Model() {
  AttentionModel model;
  model.limits = {256, 16, 0};
  model.rope.head_dim = model.rope.rotary_dim = 16;
  model.rope.trained_length = model.rope.original_length = 256;
  return model;
}

AttentionSpec Attention(const std::string& strategy) {
  return *ResolveAttention({{strategy, {}}, {}}, {}, Model(), {});
}
const KvGeometry kGeometry{.num_layers = 1,
                           .num_heads = 1,
                           .num_kv_heads = 1,
                           .head_dim = 32,
                           .padded_dim = 32,
                           .page_tokens = 16,
                           .dtype = DType::kF32};

// Letters a, b, c, ...; token 2 ends a text.
class LetterTokenizer final : public Tokenizer {
 public:
  LetterTokenizer() {
    for (int i = 0; i < kVocab; ++i) {
      const std::string letter(1, static_cast<char>('a' + i));
      pieces_.push_back({PieceKind::kText, letter, letter});
    }
  }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view) const override {
    return std::vector<int32_t>{};
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t>) const override { return ""; }
  const std::vector<Piece>& pieces() const override { return pieces_; }
  int32_t bos_id() const override { return 1; }
  int32_t eos_id() const override { return 2; }
  int32_t unk_id() const override { return 0; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return SpaceCut::kDropsSpace; }

 private:
  std::vector<Piece> pieces_;
};

// Always answers with token 5; records what ran.
class FakeRunner final : public EngineLoop::StepRunner {
 public:
  FakeRunner() : logits_(kVocab, 0.0f) { logits_[5] = 1.0f; }
  const std::vector<ModelRunner::Output>& Run(const std::vector<ScheduledTokens>& step) override {
    outputs_.clear();
    scores_.clear();
    ++steps;
    for (const ScheduledTokens& part : step) {
      tokens += part.num_tokens;
      if (part.sequence->scores) {
        scores_.push_back({part.sequence, part.sequence->num_in_kv + 1, {}});
        scores_.back().logprobs.assign(part.num_tokens, -1.0f);
      }
      if (part.sequence->generates && part.sequence->num_pending() == part.num_tokens) {
        outputs_.push_back({part.sequence, logits_});
      }
    }
    return outputs_;
  }
  const std::vector<ModelRunner::Scores>& Scores() const override { return scores_; }
  int steps = 0;
  int64_t tokens = 0;

 private:
  std::vector<float> logits_;
  std::vector<ModelRunner::Output> outputs_;
  std::vector<ModelRunner::Scores> scores_;
};

// Thread-safe record of one request's events.
class Recorder final : public EventSink {
 public:
  void OnEvent(Event event) override {
    std::lock_guard<std::mutex> lock(mu_);
    EXPECT_FALSE(ended_) << "an event after the last one";
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      tokens_ += static_cast<int>(delta->tokens.size());
      text_ += delta->text;
    }
    if (auto* scored = std::get_if<ScoredEvent>(&event)) {
      EXPECT_EQ(scored->first_position, 1 + num_scored_);
      num_scored_ += static_cast<int64_t>(scored->logprobs.size());
    }
    if (auto* completed = std::get_if<CompletedEvent>(&event)) completed_ = *completed;
    if (auto* failed = std::get_if<FailedEvent>(&event)) status_ = failed->status;
    ended_ = completed_.has_value() || !status_.ok();
    changed_.notify_all();
  }
  void WaitForEnd() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return ended_; });
  }
  void WaitForTokens(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return tokens_ >= count || ended_; });
  }
  bool ended() const { return Locked(ended_); }
  int tokens() const { return Locked(tokens_); }
  int64_t num_scored() const { return Locked(num_scored_); }
  std::string text() const { return Locked(text_); }
  absl::Status status() const { return Locked(status_); }
  std::optional<CompletedEvent> completed() const { return Locked(completed_); }

 private:
  template <typename T>
  T Locked(const T& value) const {
    std::lock_guard<std::mutex> lock(mu_);
    return value;
  }
  mutable std::mutex mu_;
  std::condition_variable changed_;
  int tokens_ = 0;
  int64_t num_scored_ = 0;
  std::string text_;
  bool ended_ = false;
  absl::Status status_;
  std::optional<CompletedEvent> completed_;
};

const std::vector<int32_t> kEos = {2};

class EngineLoopTest : public testing::Test {
 protected:
  explicit EngineLoopTest(int64_t frames = 100)
      : store_(*KvStore::Create(kGeometry, frames * 4096, HostMemory())),
        loop_({.scheduler = {64, 32},
               .model = Model(),
               .max_running_requests = 4,
               .vocab_size = kVocab},
              store_.get(), &runner_) {}

  GenerateSpec Spec(int prompt, int max_new, const std::string& document = "") {
    GenerateSpec spec;
    spec.document_id = document;
    spec.tokens.assign(prompt, 3);
    spec.attention = Attention("full");
    spec.stop.max_new_tokens = max_new;
    return spec;
  }
  std::shared_ptr<Recorder> Submit(RequestId id, GenerateSpec spec) {
    auto recorder = std::make_shared<Recorder>();
    loop_.Submit(id, std::make_unique<Generation>(std::move(spec), recorder, tokenizer_, kEos));
    return recorder;
  }
  void RunUntilIdle() {
    while (loop_.RunStep()) {
    }
  }
  void Upload(const std::string& id, int num_tokens, const std::string& strategy = "full") {
    loop_.documents().Open(id, Attention(strategy), nullptr);
    loop_.documents().Append(id, std::vector<int32_t>(num_tokens, 4));
    loop_.documents().Finish(id);
    RunUntilIdle();
  }

  LetterTokenizer tokenizer_;
  FakeRunner runner_;
  std::unique_ptr<KvStore> store_;
  EngineLoop loop_;
};

TEST_F(EngineLoopTest, AnswersAndFreesItsMemory) {
  auto recorder = Submit(1, Spec(20, 5));
  RunUntilIdle();
  ASSERT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(recorder->completed()->reason, FinishReason::kLength);
  EXPECT_EQ(recorder->completed()->usage.prompt_tokens, 20);
  EXPECT_EQ(recorder->completed()->usage.completion_tokens, 5);
  EXPECT_EQ(recorder->text(), "fffff");
  EXPECT_EQ(runner_.steps, 5);  // the prefill gives the first token, the last one is not run
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, StopsAtStopTokensAndStopStrings) {
  GenerateSpec by_token = Spec(3, 50);
  by_token.stop.stop_token_ids = {5};
  auto first = Submit(1, std::move(by_token));
  GenerateSpec by_string = Spec(3, 50);
  by_string.stop.stop_strings = {"fff"};
  auto second = Submit(2, std::move(by_string));
  RunUntilIdle();
  EXPECT_EQ(first->completed()->stop_token, 5);
  EXPECT_EQ(first->text(), "");
  EXPECT_EQ(second->completed()->stop_string, "fff");
  EXPECT_EQ(second->completed()->usage.completion_tokens, 3);
  EXPECT_EQ(second->text(), "");
}

TEST_F(EngineLoopTest, CancelFreesMemoryAtOnceInQueuePrefillAndDecode) {
  auto decoding = Submit(1, Spec(5, 400));
  loop_.RunStep();
  auto prefilling = Submit(2, Spec(600, 10));
  loop_.RunStep();
  auto queued = Submit(3, Spec(90 * 16, 10));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_waiting(), 1);
  const int64_t used = store_->used_page_bytes();
  loop_.Cancel(2, absl::CancelledError("gone"));
  EXPECT_LT(store_->used_page_bytes(), used);
  loop_.Cancel(3, absl::CancelledError("gone"));
  EXPECT_EQ(loop_.num_waiting(), 0);
  loop_.Cancel(1, absl::CancelledError("gone"));
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  for (const auto& recorder : {decoding, prefilling, queued}) {
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  }
  loop_.Cancel(99, absl::CancelledError("unknown ids are ignored"));
}

TEST_F(EngineLoopTest, ExpiredDeadlineEndsAQueuedRequest) {
  auto running = Submit(1, Spec(90 * 16, 10));
  loop_.RunStep();
  GenerateSpec late = Spec(90 * 16, 10);
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  auto queued = Submit(2, std::move(late));
  loop_.RunStep();
  EXPECT_EQ(queued->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(running->ended());
}

TEST_F(EngineLoopTest, RequestsWaitForMemoryInTheirOrder) {
  auto first = Submit(1, Spec(60 * 16, 2));
  auto second = Submit(2, Spec(60 * 16, 2));
  loop_.RunStep();
  EXPECT_EQ(loop_.num_running(), 1);
  EXPECT_EQ(loop_.num_waiting(), 1);
  RunUntilIdle();
  EXPECT_TRUE(first->completed().has_value());
  EXPECT_TRUE(second->completed().has_value());
}

TEST_F(EngineLoopTest, QuestionsShareTheDocumentAndPrefillOnlyThemselves) {
  Upload("d", 500);
  const int64_t document_bytes = store_->used_page_bytes();
  runner_.tokens = 0;
  auto one = Submit(1, Spec(3, 2, "d"));
  auto two = Submit(2, Spec(4, 2, "d"));
  RunUntilIdle();
  EXPECT_EQ(runner_.tokens, 3 + 4 + 1 + 1);
  EXPECT_EQ(one->completed()->usage.cached_tokens, 500);
  EXPECT_EQ(one->completed()->usage.prompt_tokens, 503);
  EXPECT_EQ(one->completed()->memory.device_kv_bytes_peak, 4096);  // the copied last page
  EXPECT_EQ(store_->used_page_bytes(), document_bytes);
  loop_.documents().Delete("d");
  EXPECT_EQ(store_->used_page_bytes(), 0);
}

TEST_F(EngineLoopTest, AnotherStrategyMakesItsOwnRenditionOnce) {
  Upload("d", 300);
  for (RequestId id : {1, 2}) {
    GenerateSpec spec = Spec(3, 2, "d");
    spec.attention = Attention("lm_infinite");
    runner_.tokens = 0;
    auto recorder = Submit(id, std::move(spec));
    RunUntilIdle();
    ASSERT_TRUE(recorder->completed().has_value());
    EXPECT_EQ(runner_.tokens, (id == 1 ? 300 : 0) + 4);
    EXPECT_EQ(recorder->completed()->usage.cached_tokens, id == 1 ? 0 : 300);
  }
}

TEST_F(EngineLoopTest, DeletedDocumentLivesUntilItsLastQuestionEnds) {
  Upload("d", 300);
  auto recorder = Submit(1, Spec(3, 50, "d"));
  loop_.RunStep();
  loop_.documents().Delete("d");
  auto late = Submit(2, Spec(3, 5, "d"));
  EXPECT_EQ(late->status().code(), absl::StatusCode::kNotFound);
  RunUntilIdle();
  EXPECT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, DocumentTooLargeForThePoolFailsAloneAndLetsGo) {
  auto sink = std::make_shared<Recorder>();
  loop_.documents().Open("big", Attention("full"), sink);
  loop_.documents().Append("big", std::vector<int32_t>(101 * 16, 4));
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  auto recorder = Submit(1, Spec(3, 2));
  RunUntilIdle();
  EXPECT_TRUE(recorder->completed().has_value());
}

TEST_F(EngineLoopTest, PausedUploadStopsAndResumes) {
  loop_.documents().Open("d", Attention("full"), nullptr);
  loop_.documents().Append("d", std::vector<int32_t>(200, 4));
  loop_.RunStep();
  loop_.documents().Pause("d");
  EXPECT_FALSE(loop_.RunStep());
  auto sink = std::make_shared<Recorder>();
  loop_.documents().Open("d", Attention("full"), sink);
  loop_.documents().Finish("d");
  RunUntilIdle();
  EXPECT_TRUE(sink->completed().has_value());
}

TEST_F(EngineLoopTest, UnusedRenditionsAreEvictedForARequest) {
  Upload("d", 30 * 16);
  GenerateSpec other = Spec(3, 2, "d");
  other.attention = Attention("lm_infinite");
  Submit(1, std::move(other));
  RunUntilIdle();
  const int64_t with_both = store_->reserved_bytes();
  auto big = Submit(2, Spec(69 * 16, 2));
  RunUntilIdle();
  EXPECT_TRUE(big->completed().has_value());
  EXPECT_LT(store_->reserved_bytes(), with_both);
}

TEST_F(EngineLoopTest, RequestThatDocumentsLeaveNoRoomForFailsWithAReason) {
  Upload("d", 60 * 16);
  auto recorder = Submit(1, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(recorder->status().message().find("delete documents"), std::string::npos);
}

// 1,000 requests, about half of them cancelled at random moments from other threads.
TEST_F(EngineLoopTest, AThousandCancellationsLeaveNothingBehind) {
  {
    EngineThread thread(&loop_, store_.get());
    std::mt19937 random(7);
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (RequestId id = 1; id <= 1000; ++id) {
      auto recorder = std::make_shared<Recorder>();
      recorders.push_back(recorder);
      auto generation = std::make_shared<std::unique_ptr<Generation>>(std::make_unique<Generation>(
          Spec(1 + random() % 300, 1 + random() % 20), recorder, tokenizer_, kEos));
      thread.Post([id, generation](EngineLoop& loop) { loop.Submit(id, std::move(*generation)); });
      if (random() % 4 == 0) recorder->WaitForTokens(1 + random() % 3);
      if (random() % 2 == 0) {
        thread.Post([id](EngineLoop& loop) { loop.Cancel(id, absl::CancelledError("gone")); });
      }
    }
    for (const auto& recorder : recorders) recorder->WaitForEnd();
  }
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, ShutdownFailsWhatRunsWithUnavailable) {
  auto recorder = std::make_shared<Recorder>();
  {
    EngineThread thread(&loop_, store_.get());
    auto generation = std::make_shared<std::unique_ptr<Generation>>(
        std::make_unique<Generation>(Spec(5, 1000), recorder, tokenizer_, kEos));
    thread.Post([generation](EngineLoop& loop) { loop.Submit(1, std::move(*generation)); });
    recorder->WaitForTokens(1);
  }
  EXPECT_TRUE(recorder->ended());
  if (!recorder->completed().has_value()) {
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(EngineLoopTest, AScoredStreamHoldsBackItsLastTokenUntilTheNextOneIsKnown) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), recorder);
  loop_.scorings().Append(1, std::vector<int32_t>(100, 4));
  RunUntilIdle();
  EXPECT_EQ(recorder->num_scored(), 99);
  loop_.scorings().Append(1, {5});
  RunUntilIdle();
  EXPECT_EQ(recorder->num_scored(), 100);
  EXPECT_FALSE(recorder->ended());
  loop_.scorings().Finish(1);
  ASSERT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(recorder->completed()->usage.prompt_tokens, 101);
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, AScoredStreamOfAnyLengthFitsUnderAWindow) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("lm_infinite"), recorder);
  int64_t most = 0;
  for (int part = 0; part < 100; ++part) {
    loop_.scorings().Append(1, std::vector<int32_t>(1000, 4));
    RunUntilIdle();
    most = std::max(most, store_->used_page_bytes());
  }
  EXPECT_EQ(recorder->num_scored(), 100 * 1000 - 1);
  EXPECT_LE(most, 30 * 4096);  // 256 tokens of window and a step of pages, and the sinks
  loop_.scorings().Finish(1);
  EXPECT_TRUE(recorder->completed().has_value());
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, AScoredStreamWithoutMemoryFailsAlone) {
  auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), stream);
  auto request = Submit(2, Spec(10, 3));
  for (int part = 0; part < 3 && !stream->ended(); ++part) {
    loop_.scorings().Append(1, std::vector<int32_t>(1000, 4));
    RunUntilIdle();
  }
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(request->completed().has_value());
  EXPECT_EQ(store_->reserved_bytes(), 0);
}

TEST_F(EngineLoopTest, ACancelledScoredStreamFreesItsMemory) {
  auto recorder = std::make_shared<Recorder>();
  loop_.scorings().Open(7, Attention("full"), recorder);
  loop_.scorings().Append(7, std::vector<int32_t>(500, 4));
  loop_.RunStep();
  loop_.Cancel(7, absl::CancelledError("gone"));
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->used_page_bytes() + store_->reserved_bytes(), 0);
}

}  // namespace
}  // namespace folio
