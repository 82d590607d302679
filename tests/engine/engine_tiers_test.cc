// The real engine with a cache that is larger than its memory, on a disk that fails.
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <system_error>
#include <thread>

#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;

constexpr int kDocumentTokens = 2000;  // 8 MB of pages

// Passes events on, and does something whenever a prefill has come past a token.
class AtToken final : public EventSink {
 public:
  AtToken(std::shared_ptr<EventSink> sink, int64_t token, int most_times,
          std::function<void()> action)
      : sink_(std::move(sink)),
        token_(token),
        most_times_(most_times),
        action_(std::move(action)) {}
  void OnEvent(Event event) override {
    if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
      const bool past = prefill->processed_tokens >= token_;
      if (past && !was_past_ && times < most_times_) {
        ++times;
        action_();
      }
      was_past_ = past;
    }
    sink_->OnEvent(std::move(event));
  }
  int times = 0;

 private:
  const std::shared_ptr<EventSink> sink_;
  const int64_t token_;
  const int most_times_;
  const std::function<void()> action_;
  bool was_past_ = false;
};

class EngineTiers : public testing::Test {
 protected:
  EngineTiers() {
    EngineOptions options;
    options.model_dir = TestData("../models/folio-tiny");
    options.num_threads = 1;
    options.step_tokens = 64;
    options.kv_bytes = int64_t{4} << 20;
    options.kv_dir = dir_.path() + "/kv";
    options.kv_disk_bytes = int64_t{64} << 20;
    options.store_bytes = 1;  // no document has room: pages stay where their first copy is
    auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  DocumentHandle Upload(const std::string& id, int32_t token) {
    const AttentionSpec full = *engine_->ResolveAttention({{"full", {}}, {}}, {});
    const DocumentHandle handle = engine_->OpenDocument(id, full, nullptr, {})->handle;
    const auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    EXPECT_TRUE(engine_->AppendToDocument(handle, TokensOf(token, kDocumentTokens), 0).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    return handle;
  }
  static std::vector<int32_t> TokensOf(int32_t first, size_t count) {
    std::vector<int32_t> tokens(count);
    for (size_t n = 0; n < count; ++n) tokens[n] = first + static_cast<int32_t>(n * n % 97);
    return tokens;
  }
  GenerateSpec Question(const std::optional<DocumentHandle>& document) const {
    GenerateSpec spec;
    spec.tokens.assign(5, 5);
    spec.stop.max_new_tokens = 4;
    spec.stop.ignore_eos = true;
    spec.document = document;
    spec.attention = *engine_->ResolveAttention({{"full", {}}, {}}, {});
    return spec;
  }
  std::shared_ptr<Recorder> Ask(const GenerateSpec& spec) {
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->Submit(spec, sink).ok());
    sink->WaitForEnd();
    return sink;
  }
  std::shared_ptr<Recorder> Ask(const DocumentHandle& document) { return Ask(Question(document)); }
  std::string PagesDirectory() const { return dir_.path() + "/kv/pages"; }
  std::set<std::string> Files() const {
    std::set<std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(PagesDirectory())) {
      files.insert(file.path());
    }
    return files;
  }
  // Overwrites some of every slice in all files that there are, but for some.
  void DamageFiles(const std::set<std::string>& but = {}) {
    for (const auto& file : std::filesystem::directory_iterator(PagesDirectory())) {
      if (but.contains(file.path())) continue;
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      std::error_code gone;  // of pages that are freed now
      const auto size = static_cast<int64_t>(file.file_size(gone));
      for (int64_t at = 8; !gone && at < size; at += 4096) {
        stream.seekp(at);
        stream << "damaged";
      }
    }
  }

  ScratchDir dir_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTiers, ADamagedDocumentIsComputedAgainForAQuestionThatHasNoTokenYet) {
  const DocumentHandle damaged = Upload("damaged", 3);
  const auto before = Ask(damaged);
  ASSERT_TRUE(before->completed().has_value()) << before->status();
  EXPECT_GT(engine_->Stats().slice_misses, 0);
  DamageFiles();
  const DocumentHandle whole = Upload("whole", 200);
  const auto answer = Ask(damaged);
  ASSERT_TRUE(answer->completed().has_value()) << answer->status();
  EXPECT_EQ(answer->text(), before->text());
  EXPECT_EQ(answer->completed()->usage.cached_tokens, 0);
  EXPECT_EQ(engine_->GetDocument("damaged")->state, DocumentState::kReady);
  EXPECT_EQ(engine_->GetDocument("damaged")->prefilled_tokens, kDocumentTokens);
  EXPECT_EQ(Ask(damaged)->completed()->usage.cached_tokens, kDocumentTokens);
  const auto other = Ask(whole);
  ASSERT_TRUE(other->completed().has_value()) << other->status();
  EXPECT_EQ(other->completed()->usage.cached_tokens, kDocumentTokens);
}

// The pages of a prompt that several answers share are damaged before they have a token.
TEST_F(EngineTiers, ADamagedSharedPromptIsComputedAgainForThoseThatHaveNoTokenYet) {
  GenerateSpec spec = Question(std::nullopt);
  spec.tokens = TokensOf(7, 1500);  // more than the memory
  const std::string alone = Ask(spec)->text();
  spec.num_answers = 3;
  std::vector<std::shared_ptr<Recorder>> answers;
  std::vector<std::shared_ptr<AtToken>> sinks;
  for (int n = 0; n < 3; ++n) {
    answers.push_back(std::make_shared<Recorder>());
    sinks.push_back(
        std::make_shared<AtToken>(answers.back(), 1200, n == 0 ? 1 : 0, [this] { DamageFiles(); }));
    const auto id = engine_->Submit(spec, sinks.back());
    ASSERT_TRUE(id.ok()) << id.status();
    if (n == 0) spec.first_answer = *id;
  }
  for (const auto& answer : answers) {
    answer->WaitForEnd();
    ASSERT_TRUE(answer->completed().has_value()) << answer->status();
    EXPECT_EQ(answer->text(), alone);
    EXPECT_EQ(answer->completed()->scheduling.times_restarted, 1);
  }
  EXPECT_EQ(sinks[0]->times, 1);
  EXPECT_EQ(answers[0]->completed()->usage.cached_tokens +
                answers[1]->completed()->usage.cached_tokens +
                answers[2]->completed()->usage.cached_tokens,
            2 * 1499);
  while (engine_->Stats().home_used_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().kv_reserved_bytes, 0);
}

// Its first tokens are with the client already.
TEST_F(EngineTiers, ADamagedDocumentEndsAnAnswerThatHasBegunAndStays) {
  const DocumentHandle document = Upload("book", 3);
  const std::string before = Ask(document)->text();
  GenerateSpec spec = Question(document);
  spec.stop.max_new_tokens = 2000;
  const auto answer = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Submit(spec, answer).ok());
  answer->WaitForTokens(1);
  DamageFiles();
  answer->WaitForEnd();
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kUnavailable) << answer->status();
  const auto next = Ask(document);
  ASSERT_TRUE(next->completed().has_value()) << next->status();
  EXPECT_EQ(next->text(), before);
  ASSERT_TRUE(engine_->DeleteDocument(document).ok());
  while (engine_->Stats().home_used_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().kv_reserved_bytes, 0);
}

TEST_F(EngineTiers, AnUploadWhosePagesAreDamagedIsComputedAgainAFewTimes) {
  for (const int times : {2, 100}) {
    const AttentionSpec full = *engine_->ResolveAttention({{"full", {}}, {}}, {});
    const DocumentHandle handle = engine_->OpenDocument("book", full, nullptr, {})->handle;
    const auto end = std::make_shared<Recorder>();
    const auto sink =
        std::make_shared<AtToken>(end, kDocumentTokens - 300, times, [this] { DamageFiles(); });
    ASSERT_TRUE(engine_->FollowDocument(handle, sink).ok());
    ASSERT_TRUE(engine_->AppendToDocument(handle, TokensOf(3, kDocumentTokens), 0).ok());
    ASSERT_TRUE(engine_->FinishDocument(handle).ok());
    end->WaitForEnd();
    if (times == 2) {
      EXPECT_TRUE(end->completed().has_value()) << end->status();
      EXPECT_EQ(Ask(handle)->completed()->usage.cached_tokens, kDocumentTokens);
    } else {
      EXPECT_EQ(end->status().code(), absl::StatusCode::kUnavailable) << end->status();
      EXPECT_EQ(sink->times, 4);
      EXPECT_EQ(engine_->GetDocument("book")->state, DocumentState::kFailed);
    }
    ASSERT_TRUE(engine_->DeleteDocument(handle).ok());
  }
}

TEST_F(EngineTiers, APromptWhosePagesAreDamagedIsComputedAgainAFewTimes) {
  GenerateSpec spec = Question({});
  spec.tokens = TokensOf(3, kDocumentTokens);
  const auto before = Ask(spec);
  ASSERT_TRUE(before->completed().has_value()) << before->status();
  const auto ask = [&](int times) {
    const auto end = std::make_shared<Recorder>();
    const auto sink =
        std::make_shared<AtToken>(end, kDocumentTokens - 300, times, [this] { DamageFiles(); });
    EXPECT_TRUE(engine_->Submit(spec, sink).ok());
    end->WaitForEnd();
    EXPECT_EQ(sink->times, std::min(times, 3));
    return end;
  };
  const auto repaired = ask(2);
  ASSERT_TRUE(repaired->completed().has_value()) << repaired->status();
  EXPECT_EQ(repaired->text(), before->text());
  EXPECT_EQ(repaired->completed()->usage.completion_tokens, 4);
  EXPECT_EQ(ask(100)->status().code(), absl::StatusCode::kUnavailable);
  while (engine_->Stats().kv_reserved_bytes > 0) std::this_thread::yield();

  spec.stop.max_new_tokens = 2000;
  const auto late = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Submit(spec, late).ok());
  late->WaitForTokens(1);
  DamageFiles();
  late->WaitForEnd();
  EXPECT_EQ(late->status().code(), absl::StatusCode::kUnavailable) << late->status();
}

TEST_F(EngineTiers, AQuestionWhoseOwnPagesAreDamagedKeepsTheCacheOfItsDocument) {
  constexpr int kQuestionTokens = 1500;
  const DocumentHandle document = Upload("book", 3);
  GenerateSpec spec = Question(document);
  spec.tokens = TokensOf(7, kQuestionTokens);
  const std::string before = Ask(spec)->text();
  const int64_t prefilled = engine_->Stats().prefill_tokens;
  const std::set<std::string> of_document = Files();
  const auto end = std::make_shared<Recorder>();
  const auto sink = std::make_shared<AtToken>(end, kDocumentTokens + kQuestionTokens - 300, 1,
                                              [&] { DamageFiles(of_document); });
  ASSERT_TRUE(engine_->Submit(spec, sink).ok());
  end->WaitForEnd();
  ASSERT_TRUE(end->completed().has_value()) << end->status();
  EXPECT_EQ(sink->times, 1);
  EXPECT_EQ(end->text(), before);
  EXPECT_EQ(end->completed()->usage.cached_tokens, kDocumentTokens);
  EXPECT_GT(engine_->Stats().prefill_tokens, prefilled + kQuestionTokens);  // it began again
  EXPECT_LE(engine_->Stats().prefill_tokens, prefilled + 2 * kQuestionTokens);
}

TEST_F(EngineTiers, NothingIsLeftWhenDocumentsAreGone) {
  const DocumentHandle document = Upload("book", 3);
  ASSERT_TRUE(Ask(document)->completed().has_value());
  EXPECT_GT(engine_->Stats().home_used_bytes, int64_t{4} << 20);
  EXPECT_LE(engine_->Stats().kv_used_bytes, int64_t{4} << 20);
  ASSERT_TRUE(engine_->DeleteDocument(document).ok());
  while (engine_->Stats().home_used_bytes > 0) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().kv_reserved_bytes, 0);
}

// Full attention reads every slice in every step, and twice as much as there is memory for.
TEST_F(EngineTiers, AReceiptSaysWhatWasReadFromDisk) {
  constexpr int64_t kSlices = 16;
  constexpr int64_t kSliceBytes = 4096;
  constexpr int64_t kSteps = 4;  // one of the question, the last token is not computed
  const auto answer = Ask(Upload("book", 3))->completed();
  ASSERT_TRUE(answer.has_value());
  const MemoryReceipt& receipt = answer->memory;
  const int64_t num_pages = kDocumentTokens / 16;
  EXPECT_GE(receipt.slice_hits + receipt.slice_misses, kSteps * num_pages * kSlices);
  EXPECT_LE(receipt.slice_hits + receipt.slice_misses, kSteps * (num_pages + 1) * kSlices);
  EXPECT_GT(receipt.slice_misses, kSteps * num_pages * kSlices / 4);
  EXPECT_EQ(receipt.disk_read_bytes, receipt.slice_misses * kSliceBytes);
  EXPECT_GT(receipt.disk_wait_seconds, 0);
}

TEST_F(EngineTiers, AReceiptSaysWhatItsOwnRequestHasRead) {
  constexpr int kTokens = 50;
  GenerateSpec large = Question(Upload("book", 3));
  GenerateSpec small = Question({});
  large.stop.max_new_tokens = small.stop.max_new_tokens = kTokens;
  const auto sinks = {std::make_shared<Recorder>(), std::make_shared<Recorder>()};
  ASSERT_TRUE(engine_->Submit(large, *sinks.begin()).ok());
  ASSERT_TRUE(engine_->Submit(small, *(sinks.end() - 1)).ok());
  std::vector<int64_t> slices;
  for (const auto& sink : sinks) {
    sink->WaitForEnd();
    ASSERT_TRUE(sink->completed().has_value()) << sink->status();
    const MemoryReceipt receipt = sink->completed()->memory;
    slices.push_back(receipt.slice_hits + receipt.slice_misses);
  }
  constexpr int64_t kPages = (5 + kTokens + 15) / 16;
  EXPECT_GT(slices[0], kTokens * kDocumentTokens / 16 * 16);
  EXPECT_LE(slices[1], kTokens * kPages * 16);
}

TEST_F(EngineTiers, ADiskThatTakesNothingIsTheDocumentsErrorWithItsReason) {
  std::filesystem::remove_all(PagesDirectory());  // every file that is to be made fails
  const AttentionSpec full = *engine_->ResolveAttention({{"full", {}}, {}}, {});
  const DocumentHandle handle = engine_->OpenDocument("book", full, nullptr, {})->handle;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->FollowDocument(handle, sink).ok());
  ASSERT_TRUE(engine_->AppendToDocument(handle, std::vector<int32_t>(kDocumentTokens, 7), 0).ok());
  sink->WaitForEnd();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted) << sink->status();
  EXPECT_THAT(sink->status().message(), HasSubstr("pages/0")) << sink->status();
  ASSERT_TRUE(engine_->DeleteDocument(handle).ok());

  std::filesystem::create_directory(PagesDirectory());
  EXPECT_TRUE(Ask(Upload("book", 3))->completed().has_value());
}

TEST(EngineTiersStart, DirectoriesThatCannotBeUsedAreRefused) {
  ScratchDir dir;
  EngineOptions options;
  options.model_dir = TestData("../models/folio-tiny");
  options.kv_bytes = int64_t{16} << 20;
  options.kv_dir = dir.path() + "/missing/kv";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(dir.path() + "/file") << "x";
  options.kv_dir = dir.path() + "/file";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.kv_dir = dir.path();
  options.kv_disk_bytes = 1000;
  EXPECT_THAT(Engine::Create(options).status().message(), HasSubstr("--kv-disk-bytes"));
}

}  // namespace
}  // namespace folio::test
