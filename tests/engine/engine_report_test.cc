// What the engine says of itself to those who watch it.
#include <memory>
#include <string>
#include <thread>

#include "engine/runtime/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_loop_fixture.h"
#include "tests/engine/gate.h"

namespace folio::test {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::Gt;

TenantPtr Named(const std::string& name) { return std::make_shared<Tenant>(Tenant{.name = name}); }

// Stops the engine thread in the step that gives the first token.
class StuckStep final : public EventSink {
 public:
  void OnEvent(Event event) override {
    if (std::holds_alternative<DeltaEvent>(event)) gate.OnEvent(std::move(event));
  }
  Gate gate;
};

class EngineReport : public testing::Test {
 protected:
  EngineReport() {
    EngineOptions options;
    options.model_dir = "synthetic:tiny";
    options.num_threads = 1;
    options.kv_bytes = int64_t{16} << 20;
    auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void Submit(const TenantPtr& tenant, std::shared_ptr<EventSink> sink) {
    GenerateSpec spec;
    spec.tenant = tenant;
    spec.tokens.assign(40, 5);
    spec.stop.max_new_tokens = 5;
    spec.stop.ignore_eos = true;
    ASSERT_TRUE(engine_->Submit(std::move(spec), std::move(sink)).ok());
  }
  void Upload(const std::string& id, const TenantPtr& tenant) {
    const DocumentHandle document = engine_->OpenDocument(id, {}, nullptr, {tenant})->handle;
    const auto sink = std::make_shared<Recorder>();
    ASSERT_TRUE(engine_->FollowDocument(document, sink).ok());
    ASSERT_TRUE(engine_->AppendToDocument(document, std::vector<int32_t>(200, 7), 0).ok());
    ASSERT_TRUE(engine_->FinishDocument(document).ok());
    sink->WaitForEnd();
    ASSERT_TRUE(sink->completed().has_value()) << sink->status();
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineReport, SaysWhatTheLastStepWas) {
  EXPECT_EQ(engine_->Stats().step_seconds, 0);
  const auto sink = std::make_shared<Recorder>();
  Submit(nullptr, sink);
  sink->WaitForEnd();
  while (engine_->Stats().busy) std::this_thread::yield();
  const EngineStats stats = engine_->Stats();
  EXPECT_GT(stats.step_seconds, 0);
  EXPECT_EQ(stats.step_answers, 1);
  EXPECT_EQ(stats.step_prompt_tokens, 0);
}

TEST_F(EngineReport, ComesWhileAStepIsStuck) {
  Upload("book", Named("a"));
  const auto stuck = std::make_shared<StuckStep>();
  Submit(Named("b"), stuck);
  stuck->gate.WaitUntilReached();
  const EngineStats stats = engine_->Stats();
  EXPECT_TRUE(stats.busy);
  EXPECT_EQ(stats.running, 1);
  EXPECT_EQ(engine_->CountDocuments()[static_cast<size_t>(DocumentState::kReady)], 1);
  EXPECT_TRUE(engine_->GetDocument("book").has_value());
  EXPECT_EQ(engine_->ListDocuments("", 10).size(), 1u);
  EXPECT_THAT(engine_->TenantUses(),
              ElementsAre(FieldsAre("a", Gt(0), 1), FieldsAre("b", Gt(0), 0)));
  stuck->gate.Open();
}

TEST_F(EngineReport, ForgetsTenantsThatHaveNothing) {
  Upload("book", Named("a"));
  const DocumentHandle document = engine_->GetDocument("book")->handle;
  EXPECT_THAT(engine_->TenantUses(), ElementsAre(FieldsAre("a", Gt(0), 1)));
  ASSERT_TRUE(engine_->DeleteDocument(document).ok());
  while (!engine_->TenantUses().empty()) std::this_thread::yield();
}

TEST_F(EngineLoopTest, CountsThoseThatWaitByWhatTheyWaitFor) {
  const auto count = [this](Generation::Wait what) { return loop_.num_waiting_for(what); };
  Submit(1, Spec(60 * 16, 100));
  loop_.RunStep();
  Submit(2, Spec(60 * 16, 2));
  loop_.RunStep();
  EXPECT_EQ(count(Generation::Wait::kMemory), 1);
  EXPECT_EQ(count(Generation::Wait::kTurn), 0);
  EXPECT_EQ(count(Generation::Wait::kDocument), 0);
}

}  // namespace
}  // namespace folio::test
