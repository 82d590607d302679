// A model whose cache does not fit into memory answers bit for bit like one whose cache does.
#include <filesystem>
#include <fstream>

#include "engine/attention/attention_registry.h"
#include "engine/attention/strategy_registry.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kTrainedLength = 128;
constexpr int kStep = 64;
constexpr int kTokens = 1600;  // 100 pages of 4 slices: 400 slots
constexpr int64_t kSlotBytes = 4096;

// Of the pages of kTokens, a third fits beside what a step needs.
constexpr int64_t kMemory = 160 * kSlotBytes;

class Tiers : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    dir_ = new ScratchDir;
    TinyShape shape;
    shape.trained_length = kTrainedLength;
    WriteTinyModel(shape, dir_->path() + "/model");
    whole_ = LoadTestModel(dir_->path() + "/model", {.kv_dtype = kv_dtype_}).release();
    tiered_ = Load("kv").release();
  }
  static void TearDownTestSuite() {
    delete tiered_;
    delete whole_;
    delete dir_;
  }
  static std::unique_ptr<LoadedModel> Load(const std::string& kv_dir) {
    ModelOptions options;
    options.step_tokens = kStep;
    options.kv_dtype = kv_dtype_;
    options.kv_bytes = kMemory;
    options.kv_dir = dir_->path() + "/" + kv_dir;
    return LoadTestModel(dir_->path() + "/model", options);
  }
  static AttentionPlan Plan(const StrategySpec& strategy, int64_t prompt_tokens = kUnbounded) {
    const auto spec = ResolveAttention({strategy, {}}, {}, whole_->attention, {kTokens, false});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, whole_->attention, prompt_tokens);
  }
  // Prompt and answer, in steps of uneven size.
  static void ExpectSameBits(const StrategySpec& strategy) {
    const auto tokens = RandomTokens(kTokens, 64, 3);
    const AttentionPlan plan = Plan(strategy, kTokens - 30);
    const std::vector<int> pieces{kStep, 1, 33, kStep};
    EXPECT_EQ(AllLogits(whole_, plan, tokens, pieces), AllLogits(tiered_, plan, tokens, pieces))
        << strategy.name;
    EXPECT_EQ(tiered_->store->used_home_bytes(), 0) << "something of a sequence is left";
  }
  // Streams that share most of their text, as questions about a document do.
  static void ExpectForksGoTheirOwnWays() {
    for (const char* name : {"long_heads", "full", "lm_infinite"}) {
      const AttentionPlan plan = Plan({name, {}});
      EXPECT_EQ(AskThreeTimes(whole_, plan), AskThreeTimes(tiered_, plan)) << name;
    }
  }
  static std::vector<float> AskThreeTimes(LoadedModel* model, const AttentionPlan& plan) {
    std::vector<float> all;
    Stream document(model, plan);
    const auto feed = [&](Stream* stream, int count, uint64_t seed) {
      const auto part = RandomTokens(count, 64, seed);
      StepBatch batch;
      batch.num_rows = count;
      batch.slices.push_back(stream->Next(0, count));
      const std::vector<int> rows{count - 1};
      const auto logits = model->transformer->Forward(batch, part, rows);
      all.insert(all.end(), logits.begin(), logits.end());
      stream->Done(count);
    };
    for (int n = 0; n < 20; ++n) feed(&document, kStep - 3, 100 + n);
    std::vector<Stream> questions;
    for (int n = 0; n < 3; ++n) questions.push_back(document.Fork());
    for (int round = 0; round < 12; ++round) {
      for (int n = 0; n < 3; ++n) feed(&questions[n], 5 + n, 200 + 10 * round + n);
    }
    return all;
  }
  static void ExpectBudgetIsHeld() {
    const auto tokens = RandomTokens(kTokens, 64, 3);
    const AttentionPlan plan = Plan({"full", {}});
    Stream stream(tiered_, plan);
    while (stream.num_tokens() < kTokens) {
      StepBatch batch;
      batch.num_rows = kStep;
      batch.slices.push_back(stream.Next(0, kStep));
      const std::span<const int32_t> part(tokens.data() + stream.num_tokens(), kStep);
      tiered_->transformer->Forward(batch, part, {});
      stream.Done(kStep);
      const KvStore& store = *tiered_->store;
      EXPECT_LE(store.used_page_bytes() + store.used_summary_bytes(), kMemory);
    }
    EXPECT_GT(tiered_->store->used_home_bytes(), 2 * kMemory);
    EXPECT_FALSE(tiered_->store->has_lost_pages());
  }

  static std::string kv_dtype_;
  static ScratchDir* dir_;
  static LoadedModel* whole_;
  static LoadedModel* tiered_;
};

std::string Tiers::kv_dtype_ = "auto";
ScratchDir* Tiers::dir_ = nullptr;
LoadedModel* Tiers::whole_ = nullptr;
LoadedModel* Tiers::tiered_ = nullptr;

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const AttentionStrategy* strategy : AllStrategies()) names.push_back(strategy->name());
  return names;
}

TEST_P(Tiers, WhereTheCacheLiesChangesNoBit) { ExpectSameBits({GetParam(), {}}); }

INSTANTIATE_TEST_SUITE_P(Strategies, Tiers, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST_F(Tiers, MiddleTokensAreFetched) {
  ExpectSameBits({"lm_infinite", {{"top_tokens", 5}, {"top_from_layer", 0}}});
  ExpectSameBits({"lm_infinite", {{"top_tokens", 5}, {"top_from_layer", 0}, {"top_all_rows", 1}}});
}

// Their keys are read once more when the chunk is complete, several steps after they were written.
TEST_F(Tiers, ChunksOfSeveralPagesStayUntilTheyAreSummarised) {
  ExpectSameBits({"long_heads", {{"chunk_size", 32}}});
}

// Decodes of full attention: of each layer the first pages are read while the one before is worked
// on, and what fits into memory is there again for the next token.
TEST_F(Tiers, PassesOverEverythingAreReadAheadAndPartlyFound) {
  const auto tokens = RandomTokens(kTokens, 64, 3);
  Stream stream(tiered_, Plan({"full", {}}));
  const auto feed = [&](int count) {
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back(stream.Next(0, count));
    const std::span<const int32_t> part(tokens.data() + stream.num_tokens(), count);
    tiered_->transformer->Forward(batch, part, {});
    stream.Done(count);
  };
  while (stream.num_tokens() < kTokens - kStep) feed(kStep);
  for (int n = 0; n < 4; ++n) feed(1);
  const SliceReads before = tiered_->store->reads();
  for (int n = 0; n < 8; ++n) feed(1);
  const SliceReads after = tiered_->store->reads();
  const int64_t hits = after.hits - before.hits;
  const int64_t misses = after.misses - before.misses;
  EXPECT_GT(hits, (hits + misses) / 10);
  // Two layers of which each is several waves.
  const int64_t wave = tiered_->store->slices()->wave_slices();
  EXPECT_LE(misses - (after.hinted - before.hinted), 8 * wave);
  EXPECT_GT(misses, 3 * 8 * wave);
}

TEST_F(Tiers, MemoryHoldsItsBudgetAndTheRestIsOnDisk) { ExpectBudgetIsHeld(); }

TEST_F(Tiers, ForksGoTheirOwnWays) { ExpectForksGoTheirOwnWays(); }

// Complete pages are integers; only those leave memory.
class SealedTiers : public Tiers {
 protected:
  static void SetUpTestSuite() {
    kv_dtype_ = "int8";
    Tiers::SetUpTestSuite();
  }
  static void TearDownTestSuite() {
    Tiers::TearDownTestSuite();
    kv_dtype_ = "auto";
  }
};

TEST_P(SealedTiers, WhereTheCacheLiesChangesNoBit) { ExpectSameBits({GetParam(), {}}); }

INSTANTIATE_TEST_SUITE_P(Strategies, SealedTiers, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST_F(SealedTiers, MiddleTokensAreFetched) {
  ExpectSameBits({"lm_infinite", {{"top_tokens", 5}, {"top_from_layer", 0}}});
}

TEST_F(SealedTiers, ChunksOfSeveralPagesAreSealedTogether) {
  ExpectSameBits({"long_heads", {{"chunk_size", 32}}});
}

TEST_F(SealedTiers, MemoryHoldsItsBudgetAndTheRestIsOnDisk) { ExpectBudgetIsHeld(); }

TEST_F(SealedTiers, ForksGoTheirOwnWays) { ExpectForksGoTheirOwnWays(); }

// What lies on disk is changed behind the server's back.
TEST_F(Tiers, ADamagedPageIsNeverRead) {
  const std::unique_ptr<LoadedModel> model = Load("damaged");
  const auto tokens = RandomTokens(kTokens, 64, 3);
  Stream stream(model.get(), Plan({"full", {}}));
  const auto feed = [&] {
    StepBatch batch;
    batch.num_rows = kStep;
    batch.slices.push_back(stream.Next(0, kStep));
    const std::span<const int32_t> part(tokens.data() + stream.num_tokens(), kStep);
    model->transformer->Forward(batch, part, {});
    stream.Done(kStep);
  };
  while (stream.num_tokens() < kTokens - kStep) feed();
  ASSERT_FALSE(model->store->has_lost_pages());
  int damaged = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir_->path() + "/damaged/pages")) {
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t at = 100; at < static_cast<int64_t>(file.file_size()); at += kSlotBytes) {
      stream.seekp(at);
      stream.put('!');
      ++damaged;
    }
  }
  ASSERT_GT(damaged, 100);
  feed();
  EXPECT_TRUE(model->store->HasLostPages(stream.kv()));
}

}  // namespace
}  // namespace folio::test
