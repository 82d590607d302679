// What every strategy of the registry must satisfy. A new strategy is tested here without an edit.
#include <set>

#include "engine/attention/attention_registry.h"
#include "engine/attention/strategy_registry.h"
#include "engine/attention/visible_keys.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kTrainedLength = 128;
constexpr int kPage = 16;
const StrategyLimits kLimits{kTrainedLength, kPage, 0};

// Prompts of the tests are at most this long.
const PositionRequest kText{1000, false};

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const AttentionStrategy* strategy : AllStrategies()) names.push_back(strategy->name());
  return names;
}

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    dir_ = new ScratchDir;
    TinyShape shape;
    shape.trained_length = kTrainedLength;
    WriteTinyModel(shape, dir_->path() + "/model");
    model_ = LoadTestModel(dir_->path() + "/model").release();
  }
  static void TearDownTestSuite() {
    delete model_;
    delete dir_;
  }

  static AttentionPlan Plan(const std::string& name, const std::string& position = "plain",
                            int64_t prompt_tokens = kUnbounded) {
    const auto spec = ResolveAttention({{name, {}}, {position, {}}}, {}, model_->attention, kText);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, model_->attention, prompt_tokens);
  }

  static ScratchDir* dir_;
  static LoadedModel* model_;
};

ScratchDir* Conformance::dir_ = nullptr;
LoadedModel* Conformance::model_ = nullptr;

TEST_P(Conformance, DefaultsAreValidAndResolvingIsIdempotent) {
  auto once = ResolveStrategySpec({GetParam(), {}}, kLimits);
  ASSERT_TRUE(once.ok()) << once.status();
  auto twice = ResolveStrategySpec(*once, kLimits);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ(*once, *twice);
}

TEST_P(Conformance, ParametersOutsideTheirRangeAreRefused) {
  auto spec = ResolveStrategySpec({GetParam(), {}}, kLimits);
  for (const Param& param : FindStrategy(GetParam())->Params(*spec, kLimits)) {
    for (double value : {param.min - 1, param.max + 1}) {
      const auto refused = ResolveStrategySpec({GetParam(), {{param.name, value}}}, kLimits);
      EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(refused.status().message().find(param.name), std::string::npos);
    }
  }
  EXPECT_FALSE(ResolveStrategySpec({GetParam(), {{"nonsense", 1}}}, kLimits).ok());
}

TEST_P(Conformance, EveryChoiceHasAPlan) {
  auto spec = ResolveStrategySpec({GetParam(), {}}, kLimits);
  for (const Param& param : FindStrategy(GetParam())->Params(*spec, kLimits)) {
    for (const std::string& choice : param.choices) {
      const auto chosen = ResolveStrategySpec({GetParam(), {{param.name, choice}}}, kLimits);
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_FALSE(FindStrategy(GetParam())->Plan(*chosen, kLimits).stages.empty());
    }
  }
}

TEST_P(Conformance, EqualsFullAttentionWithinTheTrainedLength) {
  const auto tokens = RandomTokens(kTrainedLength, 64, 5);
  const auto full = AllLogits(model_, Plan("full"), tokens, {512});
  const auto logits = AllLogits(model_, Plan(GetParam()), tokens, {512});
  EXPECT_LE(MaxAbsDifference(full, logits), 1e-5f);
}

TEST_P(Conformance, AnyChunkingOfThePrefillGivesTheSameBits) {
  const auto tokens = RandomTokens(3 * kTrainedLength + 5, 64, 6);
  const auto whole = AllLogits(model_, Plan(GetParam()), tokens, {512});
  for (const std::vector<int>& pieces : {std::vector<int>{1}, {7}, {16}, {100, 1, 33, 2}}) {
    EXPECT_EQ(whole, AllLogits(model_, Plan(GetParam()), tokens, pieces)) << pieces[0];
  }
}

// With a prompt that ends in the middle, so that rules for the answer's rows are on the way too.
TEST_P(Conformance, EveryLegalPositionSchemeGivesTheSameBitsInAnyChunking) {
  const auto tokens = RandomTokens(2 * kTrainedLength + 21, 64, 11);
  const int64_t prompt = 2 * kTrainedLength + 5;
  int num_legal = 0;
  for (const PositionScheme& scheme : AllPositionSchemes()) {
    const AttentionStrategy& strategy = *FindStrategy(GetParam());
    if (scheme.checkpoint_only || WhyIllegal(strategy, scheme.column, PositionKind::kRope))
      continue;
    ++num_legal;
    const AttentionPlan plan = Plan(GetParam(), scheme.name, prompt);
    const auto whole = AllLogits(model_, plan, tokens, {512});
    for (const std::vector<int>& pieces : {std::vector<int>{1}, {100, 1, 33, 2}}) {
      EXPECT_EQ(whole, AllLogits(model_, plan, tokens, pieces)) << scheme.name << " " << pieces[0];
    }
  }
  EXPECT_GE(num_legal, 1);
}

TEST_P(Conformance, AloneEqualsAnyMixedBatchBitForBit) {
  const auto tokens = RandomTokens(300, 64, 7);
  const auto alone = AllLogits(model_, Plan(GetParam()), tokens, {512});
  // Beside one stream of every strategy, each at another position, in steps of uneven size.
  std::vector<std::unique_ptr<Stream>> others;
  std::vector<std::vector<int32_t>> other_tokens;
  for (const std::string& name : Names()) {
    others.push_back(std::make_unique<Stream>(model_, Plan(name)));
    other_tokens.push_back(RandomTokens(1000, 64, 8 + others.size()));
  }
  Stream stream(model_, Plan(GetParam()));
  std::vector<float> mixed;
  for (int step = 0; stream.num_tokens() < 300; ++step) {
    StepBatch batch;
    std::vector<int32_t> ids;
    const auto add = [&](Stream* s, const std::vector<int32_t>& source, int count) {
      batch.slices.push_back(s->Next(batch.num_rows, count));
      batch.num_rows += count;
      ids.insert(ids.end(), source.begin() + s->num_tokens(),
                 source.begin() + s->num_tokens() + count);
    };
    const int mine = std::min<int>(1 + step % 40, 300 - stream.num_tokens());
    add(others[0].get(), other_tokens[0], 1 + step % 3);
    const int begin = batch.num_rows;
    add(&stream, tokens, mine);
    for (size_t i = 1; i < others.size(); ++i) {
      add(others[i].get(), other_tokens[i], 1 + (step * 5) % 20);
    }
    std::vector<int> rows(mine);
    for (int i = 0; i < mine; ++i) rows[i] = begin + i;
    const auto logits = model_->transformer->Forward(batch, ids, rows);
    mixed.insert(mixed.end(), logits.begin(), logits.end());
    others[0]->Done(1 + step % 3);
    stream.Done(mine);
    for (size_t i = 1; i < others.size(); ++i) others[i]->Done(1 + (step * 5) % 20);
  }
  EXPECT_EQ(alone, mixed);
}

TEST_P(Conformance, PlansShowEachKeyOnceAtMostAndOnlyStoredOnes) {
  const AttentionPlan plan = Plan(GetParam());
  for (int64_t i : {0, 1, 15, 16, 127, 128, 129, 200, 1000, 100'003}) {
    std::vector<int64_t> picks;
    if (plan.selection.enabled()) {
      const int64_t own = i / plan.selection.chunk_tokens;
      for (int64_t c = 1; c <= own - 2 && std::ssize(picks) < plan.selection.num_free_picks; ++c) {
        picks.push_back(c);
      }
    }
    const std::vector<VisibleKey> keys = ExpandPlan(plan, i, picks);
    EXPECT_EQ(std::ssize(keys), NumVisibleKeys(plan, i)) << i;
    std::set<int64_t> seen;
    for (const VisibleKey& key : keys) {
      EXPECT_TRUE(seen.insert(key.position).second) << "key " << key.position << " of " << i;
      EXPECT_LE(key.position, i);
      EXPECT_GE(key.distance, 0);
      const Retention& keep = plan.retention;
      const bool stored = keep.window_tokens == kUnbounded ||
                          i - key.position < keep.window_tokens || key.position < keep.num_sinks;
      EXPECT_TRUE(stored) << "key " << key.position << " of " << i;
    }
    EXPECT_TRUE(seen.count(i)) << "query " << i << " does not see itself";
  }
}

TEST_P(Conformance, ForkedCacheAnswersLikeItsOrigin) {
  const AttentionPlan plan = Plan(GetParam());
  const auto tokens = RandomTokens(333, 64, 9);
  const auto whole = AllLogits(model_, plan, tokens, {512});
  KvStore& store = *model_->store;
  // 200 tokens are shared, in the middle of a page; two forks go on from there and do not disturb
  // it.
  SequenceKv origin;
  const auto feed = [&](SequenceKv* kv, int begin, int end) {
    EXPECT_TRUE(store.Extend(plan, begin, end - begin, kv).ok());
    StepBatch batch;
    batch.num_rows = end - begin;
    batch.slices.push_back({0, end - begin, begin, &plan, kv->first_page, kv->pages, kv->sinks,
                            kv->summaries, kv->pending_queries});
    std::vector<int> rows(end - begin);
    for (int i = 0; i < end - begin; ++i) rows[i] = i;
    const auto logits = model_->transformer->Forward(
        batch, std::span<const int32_t>(tokens.data() + begin, end - begin), rows);
    store.Trim(plan, end, kv);
    return std::vector<float>(logits.begin(), logits.end());
  };
  feed(&origin, 0, 200);
  const std::vector<float> expected(whole.begin() + 200 * 64, whole.end());
  for (int round = 0; round < 2; ++round) {
    SequenceKv fork = store.Fork(origin);
    EXPECT_EQ(feed(&fork, 200, 333), expected) << "fork " << round;
    store.Release(&fork);
  }
  EXPECT_EQ(feed(&origin, 200, 333), expected);
  store.Release(&origin);
  EXPECT_EQ(store.used_page_bytes() + store.used_summary_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Conformance, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace folio::test
