// What Estimate says beside what requests really took.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr double kTolerance = 0.02;

// As many as `./dev tiers estimate` shows take some time.
int NumReceipts() { return std::getenv("FOLIO_TEST_SLOW") == nullptr ? 25 : 500; }

struct Cache {
  bool on_disk = false;
  const char* kv_dtype = "auto";
};

class EstimateTest : public testing::TestWithParam<Cache> {
 protected:
  EstimateTest() {
    options_.model_dir = "synthetic:tiny";
    options_.num_threads = 1;
    options_.kv_bytes = int64_t{32} << 20;
    options_.kv_dtype = GetParam().kv_dtype;
    if (GetParam().on_disk) {
      options_.kv_dir = dir_.path() + "/kv";
      options_.kv_disk_bytes = options_.store_bytes = int64_t{64} << 20;
    }
    auto engine = Engine::Create(options_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (const MethodInfo& method : engine_->info().catalogue.strategies) {
      if (!method.refused) strategies_.push_back(method.name);
    }
  }
  AttentionSpec AnyAttention() { return {{strategies_[Below(strategies_.size())], {}}, {}}; }
  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  std::vector<int32_t> AnyTokens(size_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = 3 + static_cast<int32_t>(Below(50));
    return tokens;
  }
  // nullopt: the strategy takes no documents.
  std::optional<DocumentHandle> Upload(const std::string& id, size_t num_tokens) {
    const auto opened = engine_->OpenDocument(id, AnyAttention(), nullptr, {});
    if (!opened.ok()) return std::nullopt;
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(opened->handle, sink).ok());
    EXPECT_TRUE(engine_->AppendToDocument(opened->handle, AnyTokens(num_tokens), 1).ok());
    EXPECT_TRUE(engine_->FinishDocument(opened->handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    return opened->handle;
  }
  GenerateSpec AnyRequest(const std::vector<DocumentHandle>& documents) {
    GenerateSpec spec;
    spec.attention = AnyAttention();
    spec.tokens = AnyTokens(1 + Below(300));
    spec.stop.max_new_tokens = 1 + static_cast<int>(Below(40));
    spec.stop.ignore_eos = true;
    if (Below(2) == 0) spec.document = documents[Below(documents.size())];
    return spec;
  }
  // How far it is off, of the larger one.
  static double Difference(int64_t estimated, int64_t taken) {
    const double most = static_cast<double>(std::max<int64_t>({estimated, taken, 1}));
    return std::abs(static_cast<double>(estimated - taken)) / most;
  }

  ScratchDir dir_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::string> strategies_;
  std::mt19937_64 random_{TestSeed()};
};

TEST_P(EstimateTest, IsWhatReceiptsSay) {
  std::vector<DocumentHandle> documents;
  for (int n = 0; documents.size() < 4; ++n) {
    const auto handle = Upload(absl::StrCat("document ", n), 50 + Below(700));
    if (handle.has_value()) documents.push_back(*handle);
  }
  double worst = 0;
  for (int n = 0; n < NumReceipts(); ++n) {
    const GenerateSpec spec = AnyRequest(documents);
    SCOPED_TRACE(absl::StrCat(spec.attention.strategy.name, ", ", spec.tokens.size(), " + ",
                              spec.stop.max_new_tokens, " tokens",
                              spec.document.has_value() ? " about a document" : ""));
    const auto estimate = engine_->EstimateRequest(spec);
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    EXPECT_NE(estimate->fit, Estimate::Fit::kNever) << estimate->reason;
    const auto sink = std::make_shared<Recorder>();
    ASSERT_TRUE(engine_->Submit(spec, sink).ok());
    sink->WaitForEnd();
    ASSERT_TRUE(sink->completed().has_value()) << sink->status();
    const MemoryReceipt& said = estimate->memory;
    const MemoryReceipt took = sink->completed()->memory;
    const int64_t said_bytes = said.device_kv_bytes_peak + said.disk_kv_bytes_peak;
    const int64_t took_bytes = took.device_kv_bytes_peak + took.disk_kv_bytes_peak;
    EXPECT_GE(said.device_kv_bytes_peak, took.device_kv_bytes_peak);
    EXPECT_EQ(said.disk_kv_bytes_peak > 0, took.disk_kv_bytes_peak > 0);
    const double off = std::max({Difference(said_bytes, took_bytes),
                                 Difference(said.disk_kv_bytes_peak, took.disk_kv_bytes_peak),
                                 Difference(said.shared_kv_bytes, took.shared_kv_bytes),
                                 Difference(said.summary_bytes_peak, took.summary_bytes_peak)});
    EXPECT_LE(off, kTolerance) << said_bytes << " " << took_bytes << ", shared "
                               << said.shared_kv_bytes << " " << took.shared_kv_bytes
                               << ", summaries " << said.summary_bytes_peak << " "
                               << took.summary_bytes_peak;
    worst = std::max(worst, off);
  }
  std::cout << NumReceipts() << " receipts" << (GetParam().on_disk ? " with a disk" : "")
            << ": at most " << 100 * worst << " % off\n";
}

TEST_P(EstimateTest, SaysWhetherItFits) {
  const auto of = [this](int64_t num_tokens) {
    const auto estimate = engine_->EstimateDocument({{"full", {}}, {}}, num_tokens, {});
    EXPECT_TRUE(estimate.ok()) << estimate.status();
    return *estimate;
  };
  EXPECT_EQ(of(100).fit, Estimate::Fit::kNow);
  EXPECT_EQ(of(100).reason, "");
  const Estimate never = of(int64_t{1} << 28);
  EXPECT_EQ(never.fit, Estimate::Fit::kNever);
  EXPECT_THAT(never.reason, testing::HasSubstr("bytes"));
  EXPECT_EQ(engine_->EstimateDocument({{"nothing", {}}, {}}, 10, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->EstimateDocument({}, (int64_t{1} << 30) + 1, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Half of the capacity is a document's until it is deleted.
  const int64_t capacity = engine_->info().kv_capacity_bytes;
  const int64_t per_token =
      of(10000).memory.device_kv_bytes_peak / 10000 + of(10000).memory.disk_kv_bytes_peak / 10000;
  const int64_t half = capacity / 2 / per_token;
  EXPECT_EQ(of(half + half / 2).fit, Estimate::Fit::kNow);
  GenerateSpec running;
  running.attention = {{"full", {}}, {}};
  running.tokens = AnyTokens(static_cast<size_t>(half));
  running.stop.max_new_tokens = 100000;
  running.stop.ignore_eos = true;
  const auto sink = std::make_shared<Recorder>();
  running.stop.max_new_tokens = static_cast<int>(half / 4);
  const auto id = engine_->Submit(running, sink);
  ASSERT_TRUE(id.ok()) << id.status();
  while (engine_->Stats().kv_reserved_bytes == 0) std::this_thread::yield();
  EXPECT_EQ(of(half).fit, Estimate::Fit::kWhenIdle);
  EXPECT_THAT(of(half).reason, testing::HasSubstr("are free while others run or are saved"));
  engine_->Cancel(*id, absl::CancelledError("enough"));
  sink->WaitForEnd();
}

TEST_P(EstimateTest, AQuestionUnderAnotherStrategyNeedsItsDocumentAgain) {
  const auto opened = engine_->OpenDocument("book", {{"full", {}}, {}}, nullptr, {});
  ASSERT_TRUE(opened.ok());
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->FollowDocument(opened->handle, sink).ok());
  ASSERT_TRUE(engine_->AppendToDocument(opened->handle, AnyTokens(500), 1).ok());
  ASSERT_TRUE(engine_->FinishDocument(opened->handle).ok());
  sink->WaitForEnd();
  GenerateSpec spec;
  spec.tokens = AnyTokens(5);
  spec.stop.max_new_tokens = 5;
  spec.document = opened->handle;
  spec.attention = {{"full", {}}, {}};
  EXPECT_EQ(engine_->EstimateRequest(spec)->document.device_kv_bytes_peak, 0);
  spec.attention = {{"sliding_window", {}}, {}};
  const auto other = engine_->EstimateRequest(spec);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(other->document.device_kv_bytes_peak, 0);
  EXPECT_EQ(other->prompt_tokens, 505);
  EXPECT_EQ(other->total_tokens, 510);
  spec.document = DocumentHandle{"nobody", 7};
  EXPECT_EQ(engine_->EstimateRequest(spec).status().code(), absl::StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(, EstimateTest,
                         testing::Values(Cache{}, Cache{.on_disk = true}, Cache{false, "int8"},
                                         Cache{true, "int8"}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.on_disk ? "WithDisk" : "InMemory", "_",
                                               info.param.kv_dtype);
                         });

}  // namespace
}  // namespace folio::test
