// What the front door of the real engine says of the queue: bounds, deadlines, forecasts.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/gate.h"

namespace folio::test {
namespace {

EngineOptions Options() {
  EngineOptions options;
  options.model_dir = "synthetic:tiny";
  options.num_threads = 1;
  options.kv_bytes = int64_t{16} << 20;
  return options;
}

std::unique_ptr<Engine> Make(const EngineOptions& options = Options()) {
  auto engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

GenerateSpec Spec(int prompt, int max_new = 3) {
  GenerateSpec spec;
  spec.tokens.assign(prompt, 5);
  spec.stop.max_new_tokens = max_new;
  spec.stop.ignore_eos = true;
  return spec;
}

TenantPtr Named(const std::string& name, const TenantLimits& limits = {}) {
  return std::make_shared<Tenant>(Tenant{.name = name, .limits = limits});
}

// The bound that a request is refused for; "" if it is not.
std::string LimitOfSubmit(Engine* engine, GenerateSpec spec, const TenantPtr& tenant) {
  spec.tenant = tenant;
  const absl::Status status =
      engine->Submit(std::move(spec), std::make_shared<Recorder>()).status();
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  return std::string(status.GetPayload(kLimitPayload).value_or(absl::Cord()));
}

class QueueOfEngine : public testing::Test {
 protected:
  // The engine thread stands still.
  void Hold(const EngineOptions& options) {
    engine_ = Make(options);
    ASSERT_TRUE(engine_->Submit(Spec(1), gate_).ok());
    gate_->WaitUntilReached();
  }
  ~QueueOfEngine() override { gate_->Open(); }
  std::string Submit(int prompt, const TenantPtr& tenant) {
    return LimitOfSubmit(engine_.get(), Spec(prompt), tenant);
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<Engine> engine_;
};

TEST_F(QueueOfEngine, IsBoundedInTokensOfPrompts) {
  EngineOptions options = Options();
  options.max_queued_prefill_tokens = 800;
  Hold(options);
  EXPECT_EQ(Submit(500, Named("a")), "");
  // Seven eighths are what one tenant may have.
  EXPECT_EQ(Submit(250, Named("a")), "tenant.queued_prefill_tokens");
  EXPECT_EQ(Submit(200, Named("a")), "");
  EXPECT_EQ(Submit(101, Named("b")), "queued_prefill_tokens");
  EXPECT_EQ(Submit(100, Named("b")), "");
}

TEST_F(QueueOfEngine, IsBoundedInBytesOfTheCache) {
  EngineOptions options = Options();
  const auto free_engine = Make(options);
  const int64_t bytes = free_engine->EstimateRequest(Spec(1000))->memory.device_kv_bytes_peak +
                        free_engine->EstimateRequest(Spec(1000))->memory.host_kv_bytes_peak;
  options.max_queued_kv_bytes = bytes * 22 / 10;  // what is reserved is a little more
  Hold(options);
  EXPECT_EQ(Submit(1000, Named("a")), "");
  EXPECT_EQ(Submit(1000, Named("a")), "tenant.queued_kv_bytes");
  EXPECT_EQ(Submit(500, Named("b")), "");
  EXPECT_EQ(Submit(1000, Named("b")), "queued_kv_bytes");
}

TEST_F(QueueOfEngine, HasWhatATenantMayHaveOfIt) {
  Hold(Options());
  const TenantPtr a = Named(
      "a", {.max_queued_requests = 2, .max_running_requests = 1, .max_queued_prefill_tokens = 100});
  EXPECT_EQ(Submit(60, a), "");
  EXPECT_EQ(Submit(60, a), "tenant.queued_prefill_tokens");
  EXPECT_EQ(Submit(20, a), "");
  EXPECT_EQ(Submit(20, a), "");
  EXPECT_EQ(Submit(1, a), "tenant.queued_requests");
  GenerateSpec large = Spec(1000);
  large.tenant = Named("b", {.max_kv_bytes = 10});
  EXPECT_EQ(engine_->Submit(large, std::make_shared<Recorder>()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(QueueOfEngine, SaysThatItIsFullBeforeARequestIsRead) {
  Hold(Options());
  const TenantPtr a = Named("a", {.max_queued_requests = 1, .max_running_requests = 1});
  EXPECT_TRUE(engine_->CheckQueue(a).ok());
  EXPECT_EQ(Submit(20, a), "");
  EXPECT_EQ(Submit(20, a), "");
  const absl::Status full = engine_->CheckQueue(a);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.GetPayload(kLimitPayload), "tenant.queued_requests");
  EXPECT_TRUE(engine_->CheckQueue(Named("b")).ok());
}

TEST_F(QueueOfEngine, IsFullForAllBeforeARequestIsRead) {
  EngineOptions options = Options();
  options.max_running_requests = 1;
  options.max_queued_requests = 1;
  Hold(options);
  EXPECT_EQ(Submit(20, Named("a")), "");
  EXPECT_EQ(engine_->CheckQueue(Named("b")).GetPayload(kLimitPayload), "queued_requests");
}

EngineOptions WithRoom() {
  EngineOptions options = Options();
  options.kv_bytes = int64_t{64} << 20;
  return options;
}

class ForecastsOfEngine : public testing::Test {
 protected:
  // All are of one tenant, who asks one after the other: nothing else is expected to come.
  GenerateSpec SpecOf(int prompt, int max_new = 3) {
    GenerateSpec spec = Spec(prompt, max_new);
    spec.tenant = tenant_;
    return spec;
  }
  // Steps enough to know how long they take.
  void Work() {
    for (int n = 0; n < 10; ++n) {
      const auto sink = std::make_shared<Recorder>();
      ASSERT_TRUE(engine_->Submit(SpecOf(200 + 10 * n, 5), sink).ok());
      sink->WaitForEnd();
    }
    // The last one is work that is there until its step has ended.
    while (engine_->Stats().busy) std::this_thread::yield();
  }
  absl::Status SubmitWith(SteadyTime::duration left, GenerateSpec spec) {
    spec.deadline = std::chrono::steady_clock::now() + left;
    const auto sink = std::make_shared<Recorder>();
    absl::Status submitted = engine_->Submit(std::move(spec), sink).status();
    if (submitted.ok()) sink->WaitForEnd();
    return submitted;
  }
  // Of what so many tokens are expected to take to their first token.
  SteadyTime::duration PartOfEstimate(double part, int prompt) {
    const double seconds = *engine_->EstimateRequest(SpecOf(prompt))->first_token_seconds;
    return std::chrono::duration_cast<SteadyTime::duration>(
        std::chrono::duration<double>(part * seconds));
  }
  const TenantPtr tenant_ = Named("one");
  const std::unique_ptr<Engine> engine_ = Make(WithRoom());
};

TEST_F(ForecastsOfEngine, ThereIsNoneBeforeAnyWork) {
  const auto estimate = engine_->EstimateRequest(SpecOf(500));
  EXPECT_FALSE(estimate->queue_seconds.has_value());
  EXPECT_FALSE(estimate->first_token_seconds.has_value());
  EXPECT_FALSE(engine_->EstimateDocument({}, 500, {})->first_token_seconds.has_value());
  // Nothing is refused for what is not known.
  EXPECT_TRUE(SubmitWith(std::chrono::milliseconds(1), SpecOf(3000)).ok());
}

TEST_F(ForecastsOfEngine, LongerPromptsTakeLonger) {
  Work();
  const auto shorter = engine_->EstimateRequest(SpecOf(100));
  const auto longer = engine_->EstimateRequest(SpecOf(3000));
  EXPECT_LT(*shorter->queue_seconds, *shorter->first_token_seconds);
  ASSERT_TRUE(shorter->first_token_seconds.has_value());
  EXPECT_GT(*shorter->first_token_seconds, 0);
  EXPECT_GT(*longer->first_token_seconds, 5 * *shorter->first_token_seconds);
  EXPECT_GT(*engine_->EstimateDocument({}, 3000, {})->first_token_seconds, 0);
}

TEST_F(ForecastsOfEngine, ADeadlineLongBeforeTheFirstTokenIsRefusedWithTheEstimate) {
  Work();
  const absl::Status refused = SubmitWith(PartOfEstimate(0.5, 8000), SpecOf(8000));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(refused.GetPayload(kExpectedSecondsPayload).has_value());
  EXPECT_THAT(refused.message(), testing::HasSubstr("the answer is expected to take"));
}

TEST_F(ForecastsOfEngine, ADeadlineThatCanBeMetIsNotRefused) {
  Work();
  EXPECT_TRUE(SubmitWith(PartOfEstimate(2, 3000), SpecOf(3000)).ok());
  EXPECT_TRUE(SubmitWith(PartOfEstimate(0.5, 3000), SpecOf(10)).ok());
}

TEST_F(ForecastsOfEngine, WhereThereIsNoRoomNobodyLooksWhenThereWillBe) {
  Work();
  const SteadyTime::duration too_short = PartOfEstimate(0.1, 3000);
  const auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(engine_->Submit(SpecOf(1), gate).ok());
  gate->WaitUntilReached();
  GenerateSpec spec = SpecOf(3000);
  const TenantPtr full = Named("a", {.max_queued_requests = 1, .max_queued_prefill_tokens = 3000});
  EXPECT_EQ(LimitOfSubmit(engine_.get(), spec, full), "");
  spec.deadline = std::chrono::steady_clock::now() + too_short;
  EXPECT_EQ(LimitOfSubmit(engine_.get(), spec, full), "tenant.queued_prefill_tokens");
  gate->Open();
}

}  // namespace
}  // namespace folio::test
