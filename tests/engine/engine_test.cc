// The real engine on the bundled model, beside what the contract says of every engine.
#include "engine/runtime/engine.h"

#include <atomic>
#include <thread>

#include "engine/backend/cpu/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/failing_backend.h"
#include "tests/engine/gate.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;

EngineOptions SmallOptions() {
  EngineOptions options;
  options.model_dir = TestData("../models/folio-tiny");
  options.num_threads = 1;
  options.kv_bytes = int64_t{16} << 20;
  return options;
}

std::unique_ptr<Engine> Make(const EngineOptions& options) {
  auto engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

GenerateSpec Spec(int prompt = 5, int max_new = 3) {
  GenerateSpec spec;
  spec.tokens.assign(prompt, 5);
  spec.stop.max_new_tokens = max_new;
  spec.stop.ignore_eos = true;
  return spec;
}

TEST(Engine, ModelsThatCannotBeLoadedAreErrors) {
  EngineOptions options = SmallOptions();
  options.model_dir = "/nowhere";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kNotFound);
  options = SmallOptions();
  options.kv_dtype = "fp8";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = SmallOptions();
  options.device = "cuda";
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Engine, AQuestionReadsTheCacheOfItsDocument) {
  const auto engine = Make(SmallOptions());
  const DocumentHandle document = engine->OpenDocument("book", {}, nullptr, {})->handle;
  const auto uploader = std::make_shared<Recorder>();
  EXPECT_TRUE(engine->FollowDocument(document, uploader).ok());
  EXPECT_TRUE(engine->AppendToDocument(document, std::vector<int32_t>(200, 7), 0).ok());
  EXPECT_TRUE(engine->FinishDocument(document).ok());
  // While the prefill may still run.
  GenerateSpec spec = Spec();
  spec.document = document;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(spec, sink).ok());
  sink->WaitForEnd();
  ASSERT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_EQ(sink->completed()->usage.prompt_tokens, 205);
  const auto again = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(spec, again).ok());
  again->WaitForEnd();
  EXPECT_EQ(again->completed()->usage.cached_tokens, 200);
  EXPECT_EQ(again->text(), sink->text());
  EXPECT_GT(engine->GetDocument("book")->device_kv_bytes, 0);
}

TEST(Engine, APassedDeadlineEndsARequestWhereverItIs) {
  EngineOptions options = SmallOptions();
  options.max_running_requests = 1;
  const auto engine = Make(options);
  const auto running = std::make_shared<Recorder>();
  const auto id = engine->Submit(Spec(5, 2000), running);
  ASSERT_TRUE(id.ok()) << id.status();
  running->WaitForTokens(1);
  GenerateSpec late = Spec();
  late.deadline = std::chrono::steady_clock::now();
  const auto queued = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(late, queued).ok());
  queued->WaitForEnd();
  EXPECT_EQ(queued->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(running->ended());
  engine->Cancel(*id, absl::CancelledError("enough"));
  running->WaitForEnd();
}

TEST(Engine, AFullQueueRefusesBeforeTheEngineThreadHasLooked) {
  EngineOptions options = SmallOptions();
  options.max_running_requests = 1;
  options.max_queued_requests = 3;
  const auto engine = Make(options);
  const auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(engine->Submit(Spec(), gate).ok());
  gate->WaitUntilReached();
  std::vector<std::shared_ptr<Recorder>> sinks;
  absl::Status status;
  while (status.ok()) {
    const auto sink = std::make_shared<Recorder>();
    status = engine->Submit(Spec(), sink).status();
    if (status.ok()) sinks.push_back(sink);
    ASSERT_LE(sinks.size(), 4u);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // The place of the one at the gate may still look free: the engine thread has not come to say
  // that it runs.
  EXPECT_GE(sinks.size(), 3u);
  EXPECT_GE(engine->Stats().queued(), 3);
  gate->Open();
  for (const auto& sink : sinks) {
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  }
  EXPECT_TRUE(engine->Submit(Spec(), std::make_shared<Recorder>()).ok());
}

TEST(Engine, OneClientLeavesPlacesInTheQueueToOthers) {
  EngineOptions options = SmallOptions();
  options.max_running_requests = 1;
  options.max_queued_requests = 16;
  const auto engine = Make(options);
  const auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(engine->Submit(Spec(), gate).ok());
  gate->WaitUntilReached();
  const auto submit = [&](const std::string& client) {
    GenerateSpec spec = Spec();
    spec.tenant = std::make_shared<Tenant>(Tenant{.name = client});
    return engine->Submit(spec, std::make_shared<Recorder>()).status();
  };
  // One that could run, seven eighths of those that can wait.
  for (int n = 0; n < 1 + 14; ++n) ASSERT_TRUE(submit("a").ok()) << n;
  const absl::Status refused = submit("a");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), testing::HasSubstr("15 requests of one tenant"));
  EXPECT_TRUE(submit("b").ok());
  gate->Open();
  // When they have ended it may have as many again.
  while (!submit("a").ok()) std::this_thread::yield();
}

TEST(Engine, StatisticsCountARequestOnceOnItsWay) {
  constexpr int kRequests = 3000;
  EngineOptions options = SmallOptions();
  options.max_running_requests = 2;
  options.max_queued_requests = kRequests;
  options.max_queued_requests_per_client = kRequests;
  options.max_context_tokens = 1 << 20;
  const auto engine = Make(options);
  GenerateSpec endless = Spec(5, 1000000);
  endless.attention.strategy.name = "lm_infinite";
  const auto count = [&engine] {
    const EngineStats stats = engine->Stats();
    return stats.queued() + stats.running;
  };
  std::atomic<bool> counts = true;
  std::atomic<int> submitted = 0;
  std::thread counting([&] {
    while (counts) {
      const int before = submitted;
      const int counted = count();
      EXPECT_GE(counted, before);
      EXPECT_LE(counted, submitted + 1);  // one is being submitted
    }
  });
  std::vector<RequestId> ids;
  for (int n = 0; n < kRequests; ++n) {
    const auto id = engine->Submit(endless, std::make_shared<Recorder>());
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(*id);
    ++submitted;
  }
  counts = false;
  counting.join();
  EXPECT_EQ(count(), kRequests);
  for (const RequestId id : ids) engine->Cancel(id, absl::CancelledError("enough"));
  while (count() > 0) std::this_thread::yield();
}

// Again and again, because the engine thread takes the first of them while the others come.
TEST(Engine, ABurstThatCanRunAndWaitIsNotRefused) {
  EngineOptions options = SmallOptions();
  options.max_running_requests = 2;
  options.max_queued_requests = 3;
  const auto engine = Make(options);
  for (int burst = 0; burst < 20; ++burst) {
    const auto idle = [](const EngineStats& stats) { return stats.queued() + stats.running == 0; };
    while (!idle(engine->Stats())) std::this_thread::yield();  // said after the last event
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int n = 0; n < 5; ++n) {
      sinks.push_back(std::make_shared<Recorder>());
      const absl::Status submitted = engine->Submit(Spec(), sinks.back()).status();
      ASSERT_TRUE(submitted.ok()) << n << ": " << submitted;
    }
    for (const auto& sink : sinks) {
      sink->WaitForEnd();
      EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    }
  }
}

TEST(Engine, WhatCanNeverRunIsRefusedAtOnce) {
  EngineOptions options = SmallOptions();
  options.max_context_tokens = 1 << 20;
  const auto engine = Make(options);
  const auto code = [&](const GenerateSpec& spec) {
    return engine->Submit(spec, std::make_shared<Recorder>()).status().code();
  };
  EXPECT_EQ(code(Spec(1 << 20, 1)), absl::StatusCode::kInvalidArgument);
  GenerateSpec large = Spec(500000, 1);
  large.attention.strategy.name = "full";
  EXPECT_EQ(code(large), absl::StatusCode::kFailedPrecondition);
  GenerateSpec evidence = Spec();
  evidence.attention.strategy.name = "full";
  evidence.max_evidence_spans = 1;
  EXPECT_EQ(code(evidence), absl::StatusCode::kUnimplemented);
  const AttentionSpec cutting = {{"truncation", {}}, {}};
  EXPECT_EQ(engine->OpenScore(cutting, {}, std::make_shared<Recorder>()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->OpenDocument("book", cutting, nullptr, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(engine->GetDocument("book").has_value());
}

TEST(Engine, ADocumentThatCanNeverFitIsRefusedByItsSize) {
  EngineOptions options = SmallOptions();
  options.max_context_tokens = 1 << 20;
  const auto engine = Make(options);
  const auto most = static_cast<int64_t>(engine->tokenizer().max_bytes_per_token());
  ASSERT_GT(most, 0);
  const auto resolved = [&](const char* strategy) {
    return *engine->ResolveAttention({{strategy, {}}, {}}, {});
  };
  const AttentionSpec full = resolved("full");
  EXPECT_TRUE(engine->CheckDocumentSize(full, 1).ok());
  const absl::Status no_cache = engine->CheckDocumentSize(full, 500000 * most);
  EXPECT_EQ(no_cache.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(no_cache.message(), HasSubstr("500000 tokens under full"));
  EXPECT_TRUE(engine->CheckDocumentSize(resolved("lm_infinite"), 500000 * most).ok());
  EXPECT_TRUE(engine->CheckDocumentSize(resolved("lm_infinite"), most << 20).ok());
  EXPECT_EQ(engine->CheckDocumentSize(resolved("lm_infinite"), (most << 20) + most).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Engine, ADocumentThatDoesNotFitFailsAloneAndSaysSo) {
  const auto engine = Make(SmallOptions());
  const DocumentHandle document =
      engine->OpenDocument("book", {{"full", {}}, {}}, nullptr, {})->handle;
  const auto uploader = std::make_shared<Recorder>();
  EXPECT_TRUE(engine->FollowDocument(document, uploader).ok());
  EXPECT_TRUE(engine->AppendToDocument(document, std::vector<int32_t>(500000, 7), 0).ok());
  uploader->WaitForEnd();
  EXPECT_EQ(uploader->status().code(), absl::StatusCode::kResourceExhausted);
  const DocumentInfo failed = *engine->GetDocument("book");
  EXPECT_EQ(failed.state, DocumentState::kFailed);
  EXPECT_EQ(failed.error, uploader->status());
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(Spec(), sink).ok());
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
}

TEST(Engine, StatisticsFollowTheWork) {
  const auto engine = Make(SmallOptions());
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(Spec(40, 5), sink).ok());
  sink->WaitForEnd();
  while (engine->Stats().busy) std::this_thread::yield();
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.prefill_tokens, 40);
  EXPECT_EQ(stats.decode_tokens, 4);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.kv_used_bytes + stats.kv_reserved_bytes, 0);
  EXPECT_GT(stats.kv_capacity_bytes, 0);
}

TEST(Engine, AFailedDeviceFailsEverythingOnceAndIsReported) {
  std::atomic<bool> lost{false};
  std::atomic<int> reported{0};
  EngineOptions options = SmallOptions();
  options.device = "cuda";
  options.make_cuda = [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
    auto cpu = CreateCpuBackend({});
    if (!cpu.ok()) return cpu.status();
    return std::make_unique<FailingBackend>(*std::move(cpu), &lost);
  };
  options.on_device_failure = [&](const absl::Status&) { ++reported; };
  const auto engine = Make(options);
  const DocumentHandle document = engine->OpenDocument("book", {}, nullptr, {})->handle;
  const auto uploader = std::make_shared<Recorder>();
  EXPECT_TRUE(engine->FollowDocument(document, uploader).ok());
  const auto running = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(Spec(5, 2000), running).ok());
  running->WaitForTokens(1);
  lost = true;
  for (const auto& sink : {running, uploader}) {
    sink->WaitForEnd();
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(sink->status().message()), HasSubstr("illegal memory access"));
  }
  EXPECT_EQ(engine->GetDocument("book")->state, DocumentState::kFailed);
  const auto late = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->Submit(Spec(), late).ok());
  late->WaitForEnd();
  EXPECT_EQ(late->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reported, 1);
}

}  // namespace
}  // namespace folio::test
