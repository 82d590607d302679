// Checks of what comes in, over plain data.
#include "engine/runtime/admission.h"

#include "engine/attention/strategy_registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kVocab = 16;

AttentionModel Model(int trained_length = 256) {
  AttentionModel model;
  model.limits = {trained_length, 16, 0};
  model.rope.head_dim = model.rope.rotary_dim = 16;
  model.rope.trained_length = model.rope.original_length = trained_length;
  return model;
}

GenerateSpec Spec(const std::string& strategy = "full") {
  GenerateSpec spec;
  spec.tokens = {1, 2, 3};
  spec.attention = *ResolveAttention({{strategy, {}}, {}}, {}, Model(), {});
  return spec;
}

AttentionPlan PlanOf(const GenerateSpec& spec) { return PlanFor(spec.attention, Model()); }

DocumentInfo Document(DocumentState state) {
  DocumentInfo document;
  document.handle.id = "book";
  document.state = state;
  if (state == DocumentState::kFailed) document.error = absl::AbortedError("the pool is full");
  return document;
}

TEST(Admission, TokensMustBeInTheVocabulary) {
  EXPECT_TRUE(CheckTokens({}, kVocab).ok());
  EXPECT_TRUE(CheckTokens(std::vector<int32_t>{0, kVocab - 1}, kVocab).ok());
  for (const int32_t bad : {-1, kVocab}) {
    const absl::Status status = CheckTokens(std::vector<int32_t>{3, bad}, kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("index 1"));
  }
}

TEST(Admission, ARequestNeedsAPromptAndAnAnswer) {
  EXPECT_TRUE(CheckRequest(Spec(), kVocab).ok());
  GenerateSpec empty = Spec();
  empty.tokens.clear();
  GenerateSpec no_answer = Spec();
  no_answer.stop.max_new_tokens = 0;
  GenerateSpec bad_stop = Spec();
  bad_stop.stop.stop_token_ids = {kVocab};
  GenerateSpec too_late = Spec();
  too_late.stop.min_new_tokens = too_late.stop.max_new_tokens + 1;
  GenerateSpec bad_bias = Spec();
  bad_bias.sampling.logit_bias = {{3, 1.0f}, {-1, 1.0f}};
  GenerateSpec bad_word = Spec();
  bad_word.sampling.bad_words = {{3}, {4, kVocab}};
  GenerateSpec empty_word = Spec();
  empty_word.sampling.bad_words = {{3}, {}};
  for (const GenerateSpec& spec :
       {empty, no_answer, bad_stop, too_late, bad_bias, bad_word, empty_word}) {
    EXPECT_EQ(CheckRequest(spec, kVocab).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Admission, LengthsAreLimitedInclusively) {
  EXPECT_TRUE(CheckLength("the prompt", 100, 100).ok());
  const absl::Status status = CheckLength("the prompt", 101, 100);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the prompt has 101 tokens, the limit is 100");
}

// Whoever chooses can give evidence: the plan says so, and the message names no other strategy.
TEST(Admission, EvidenceIsForStrategiesWhoseHeadsChoose) {
  for (const AttentionStrategy* strategy : AllStrategies()) {
    GenerateSpec spec = Spec(strategy->name());
    const AttentionPlan plan = PlanOf(spec);
    EXPECT_TRUE(CheckEvidence(spec, plan, Model()).ok()) << "none is asked for";
    spec.max_evidence_spans = 3;
    const absl::Status status = CheckEvidence(spec, plan, Model());
    EXPECT_EQ(status.ok(), plan.selection.enabled()) << strategy->name();
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    for (const AttentionStrategy* other : AllStrategies()) {
      const std::string name = other->name();
      const bool chooses = PlanOf(Spec(name)).selection.enabled();
      if (name == strategy->name()) continue;
      EXPECT_EQ(std::string(status.message()).find(name) != std::string::npos, chooses) << status;
    }
    spec.max_evidence_spans = 0;
    spec.layer_evidence = true;
    EXPECT_EQ(CheckEvidence(spec, plan, Model()).code(), absl::StatusCode::kUnimplemented);
  }
}

TEST(Admission, AReportOfThePromptIsForStrategiesThatReadAllOfIt) {
  GenerateSpec rated = Spec("truncation");
  rated.prompt_logprobs = true;
  GenerateSpec echoed = Spec("truncation");
  echoed.echo = true;
  for (GenerateSpec spec : {rated, echoed}) {
    EXPECT_EQ(CheckPromptReport(spec, PlanOf(spec)).code(), absl::StatusCode::kUnimplemented);
    spec.attention = Spec("lm_infinite").attention;
    EXPECT_TRUE(CheckPromptReport(spec, PlanOf(spec)).ok());
  }
  const GenerateSpec plain = Spec("truncation");
  EXPECT_TRUE(CheckPromptReport(plain, PlanOf(plain)).ok());
}

TEST(Admission, WhatCutsPromptsNeedsTheirLength) {
  for (const AttentionStrategy* strategy : AllStrategies()) {
    const GenerateSpec spec = Spec(strategy->name());
    const AttentionPlan plan = PlanOf(spec);
    const absl::Status status = CheckUnknownLength(spec.attention, plan);
    EXPECT_EQ(status.ok(), !plan.truncation.enabled()) << strategy->name();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  }
}

TEST(Admission, WhatNeverFitsIsRefusedWithAdvice) {
  const AttentionSpec spec = Spec().attention;
  EXPECT_TRUE(CheckCapacity(spec, 100, 4096, 4096, Model()).ok());
  const absl::Status status = CheckCapacity(spec, 100, 4097, 4096, Model());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("100 tokens under full need 4097 bytes"));
}

// Two may run and three may wait.
TEST(Admission, WhoeverFindsAPlaceToRunTakesNoneOfTheQueue) {
  EngineOptions options;
  options.max_running_requests = 2;
  options.max_queued_requests = 3;
  const auto admissible = [&options](int running, int waiting, int posted = 0) {
    EngineStats stats;
    stats.posted = posted;
    stats.running = running;
    stats.waiting = waiting;
    return NumAdmissible(stats, options);
  };
  EXPECT_EQ(admissible(0, 0), 5);
  EXPECT_EQ(admissible(1, 0), 4);
  EXPECT_EQ(admissible(2, 0), 3);
  EXPECT_EQ(admissible(2, 2), 1);
  EXPECT_EQ(admissible(2, 3), 0);
  // Short of memory: a place alone helps nobody who waits.
  EXPECT_EQ(admissible(1, 3), 0);
  EXPECT_EQ(admissible(3, 0), 3);  // one that was held back has come again
  // On their way.
  EXPECT_EQ(admissible(0, 0, 4), 1);
  EXPECT_EQ(admissible(2, 1, 2), 0);
}

TEST(Admission, MemoryAdviceNamesTheStrategiesOfBoundedMemory) {
  const std::string advice = MemoryAdvice(Model());
  for (const char* bounded : {"lm_infinite", "sliding_window", "streaming"}) {
    EXPECT_THAT(advice, HasSubstr(bounded));
  }
  for (const char* other : {"full", "long_heads", "truncation"}) {
    EXPECT_THAT(advice, Not(HasSubstr(other)));
  }
}

TEST(Admission, DocumentsByState) {
  const auto refused = absl::StatusCode::kFailedPrecondition;
  const struct {
    DocumentState state;
    absl::StatusCode alive, uploading, finished;
  } cases[] = {
      {DocumentState::kUploading, absl::StatusCode::kOk, absl::StatusCode::kOk, refused},
      {DocumentState::kPrefilling, absl::StatusCode::kOk, refused, absl::StatusCode::kOk},
      {DocumentState::kReady, absl::StatusCode::kOk, refused, absl::StatusCode::kOk},
      {DocumentState::kFailed, refused, refused, refused},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(DocumentStateName(c.state));
    EXPECT_EQ(CheckAlive(Document(c.state)).code(), c.alive);
    EXPECT_EQ(CheckUploading(Document(c.state)).code(), c.uploading);
    EXPECT_EQ(CheckFinished(Document(c.state)).code(), c.finished);
  }
  EXPECT_THAT(CheckAlive(Document(DocumentState::kFailed)).message(),
              HasSubstr("the pool is full"));
}

}  // namespace
}  // namespace folio
