// Every allocation of the engine's threads fails once, one after the other, while documents are
// uploaded, questions asked, texts scored and requests cancelled: what is at work then fails with
// RESOURCE_EXHAUSTED or completes, and the engine goes on as if nothing had been.
#include <atomic>
#include <thread>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "gtest/gtest.h"
#include "tests/allocation/failing_new.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

// How a request ended. Takes no memory.
class Outcome final : public EventSink {
 public:
  Outcome() { tokens_.reserve(64); }
  void OnEvent(Event event) override {
    MutexLock lock(&mu_);
    if (const auto* delta = std::get_if<DeltaEvent>(&event)) {
      for (const int32_t token : delta->tokens) tokens_.push_back(token);
    }
    const auto* failed = std::get_if<FailedEvent>(&event);
    if (failed == nullptr && !std::holds_alternative<CompletedEvent>(event)) return;
    ++num_ends_;
    if (failed != nullptr) status_ = failed->status;
    changed_.NotifyAll();
  }
  absl::Status Wait() {
    MutexLock lock(&mu_);
    while (num_ends_ == 0) changed_.Wait(&mu_);
    return status_;
  }
  int num_ends() {
    MutexLock lock(&mu_);
    return num_ends_;
  }
  std::vector<int32_t> tokens() {
    MutexLock lock(&mu_);
    return tokens_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int num_ends_ FOLIO_GUARDED_BY(mu_) = 0;
  absl::Status status_ FOLIO_GUARDED_BY(mu_);
  std::vector<int32_t> tokens_ FOLIO_GUARDED_BY(mu_);
};

class EngineAllocation : public ::testing::Test {
 protected:
  explicit EngineAllocation(const std::string& kv_dir = "") {
    EngineOptions options;
    options.model_dir = TestData("../models/folio-tiny");
    options.num_threads = 2;
    options.kv_bytes = int64_t{64} << 20;
    options.step_tokens = 64;
    if (!kv_dir.empty()) {
      options.kv_bytes = int64_t{5} << 18;
      options.kv_dir = kv_dir;
      options.kv_disk_bytes = int64_t{64} << 20;
    }
    engine_ = *Engine::Create(options);
    answer_ = Answer();
  }

  static GenerateSpec Question(int num_tokens, std::optional<DocumentHandle> document = {}) {
    GenerateSpec spec;
    spec.document = std::move(document);
    for (int i = 0; i < num_tokens; ++i) spec.tokens.push_back(5 + i % 20);
    spec.stop.max_new_tokens = 4;
    spec.stop.ignore_eos = true;
    return spec;
  }
  // One that needs whatever a request can need.
  static GenerateSpec RichQuestion(const DocumentHandle& document) {
    GenerateSpec spec = Question(9, document);
    spec.attention.strategy.name = "long_heads";
    spec.max_evidence_spans = 4;
    spec.layer_evidence = true;
    spec.logprobs = true;
    spec.num_top_logprobs = 3;
    spec.sampling.temperature = 0.7f;
    spec.sampling.repetition_penalty = 1.1f;
    spec.prompt_logprobs = true;
    spec.num_prompt_top_logprobs = 2;
    spec.echo = true;
    spec.sampling.presence_penalty = 0.5f;
    spec.sampling.logit_bias = {{4, -1.0f}, {9, 2.0f}};
    spec.sampling.bad_words = {{7}, {5, 6}};
    spec.stop.min_new_tokens = 2;
    spec.stop.stop_strings = {"a stop string that does not come"};
    return spec;
  }

  void Note(Outcome* outcome) {
    const absl::Status status = outcome->Wait();
    if (absl::IsResourceExhausted(status)) ++num_failed_;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  // Questions about a document that has failed are refused.
  void Ask(GenerateSpec spec) {
    const auto outcome = std::make_shared<Outcome>();
    if (engine_->Submit(std::move(spec), outcome).ok()) Note(outcome.get());
    EXPECT_LE(outcome->num_ends(), 1);
  }
  void AskAndCancel() {
    const auto outcome = std::make_shared<Outcome>();
    const auto id = engine_->Submit(Question(100), outcome);
    ASSERT_TRUE(id.ok());
    engine_->Cancel(*id, absl::CancelledError("not wanted any more"));
    const absl::Status status = outcome->Wait();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status) || absl::IsResourceExhausted(status));
  }
  void Score() {
    const auto outcome = std::make_shared<Outcome>();
    const auto id = engine_->OpenScore({}, {}, outcome);
    ASSERT_TRUE(id.ok());
    EXPECT_TRUE(engine_->AppendToScore(*id, Question(30).tokens).ok());
    EXPECT_TRUE(engine_->AppendToScore(*id, Question(50).tokens).ok());
    engine_->FinishScore(*id);
    Note(outcome.get());
  }
  void RunScenario() {
    const auto upload = std::make_shared<Outcome>();
    const auto document = engine_->OpenDocument("a document with a long name", {}, nullptr, {});
    ASSERT_TRUE(document.ok()) << document.status();
    const DocumentHandle handle = document->handle;
    // All of them are refused once the document has failed.
    const absl::Status follows = engine_->FollowDocument(handle, upload);
    EXPECT_TRUE(follows.ok() || absl::IsFailedPrecondition(follows)) << follows;
    engine_->AppendToDocument(handle, Question(90).tokens, 0).IgnoreError();
    engine_->AppendToDocument(handle, Question(70).tokens, 0).IgnoreError();
    engine_->FinishDocument(handle).IgnoreError();
    if (follows.ok()) {
      Note(upload.get());
    } else {
      ++num_failed_;
    }
    Ask(Question(9, handle));
    Ask(RichQuestion(handle));
    Ask(RichQuestion(handle));
    Ask(Question(40));
    Score();
    AskAndCancel();
    EXPECT_TRUE(engine_->DeleteDocument(handle).ok());
  }
  std::vector<int32_t> Answer() {
    const auto outcome = std::make_shared<Outcome>();
    EXPECT_TRUE(engine_->Submit(Question(30), outcome).ok());
    EXPECT_TRUE(outcome->Wait().ok());
    return outcome->tokens();
  }
  // Statistics come a moment after the last event, or when a slow disk has written.
  void ExpectNothingHeld() {
    EngineStats stats = engine_->Stats();
    const auto held = [&stats] {
      return stats.kv_reserved_bytes > 0 || stats.running > 0 || stats.kv_used_bytes > 0;
    };
    for (int i = 0; i < 60000 && held(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // A page that was being written is let go of by the next step.
      if (i % 50 == 49) Answer();
      stats = engine_->Stats();
    }
    EXPECT_EQ(stats.kv_reserved_bytes, 0);
    EXPECT_EQ(stats.kv_used_bytes + stats.summary_used_bytes, 0);
    EXPECT_EQ(stats.running + stats.waiting, 0);
  }
  // How many allocations were counted.
  int64_t RunWithFailures(const char* thread, int64_t first, int64_t count) {
    SCOPED_TRACE(testing::Message()
                 << thread << ": allocation " << first << " and " << count - 1 << " more");
    FailAllocations(thread, first, count);
    RunScenario();
    const int64_t num_counted = StopFailing();
    EXPECT_EQ(Answer(), answer_);
    ExpectNothingHeld();
    return num_counted;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> answer_;
  int num_failed_ = 0;
};

TEST_F(EngineAllocation, EachThatFailsOnTheEngineThreadFailsOneRequest) {
  int64_t first = 1;
  while (!HasFailure() && RunWithFailures("engine", first, 1) >= first) {
    first += first < 100 ? 1 : 11;
  }
  EXPECT_GT(first, 100);
  EXPECT_GT(num_failed_, 50);
}

TEST_F(EngineAllocation, SeveralThatFailInARowFailMoreOfThem) {
  int64_t first = 1;
  while (!HasFailure() && RunWithFailures("engine", first, 40) >= first) first += 37;
  EXPECT_GT(num_failed_, 5);
}

// With memory for less than the text.
class EngineAllocationOnDisk : public EngineAllocation {
 protected:
  EngineAllocationOnDisk() : EngineAllocation(TempDirectory()) {}

 private:
  // Outlives the engine.
  static const std::string& TempDirectory() {
    static const ScratchDir* const dir = new ScratchDir;
    return dir->path();
  }
};

TEST_F(EngineAllocationOnDisk, EachThatFailsOnTheEngineThreadFailsOneRequest) {
  int64_t first = 1;
  while (!HasFailure() && RunWithFailures("engine", first, 1) >= first) {
    first += first < 100 ? 3 : 37;
  }
  EXPECT_GT(num_failed_, 10);
}

// How much these threads do depends on the machine; without a fresh engine they need nothing new.
TEST_F(EngineAllocation, ThoseOfComputeThreadsFailTheStep) {
  for (int64_t first = 1; first < 40 && !HasFailure(); ++first)
    RunWithFailures("compute", first, 1);
}

}  // namespace
}  // namespace folio::test
