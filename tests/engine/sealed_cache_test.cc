// Caches whose complete pages are integers of 8 or 4 bits (sealed_pages_test.cc): under every
// strategy close to a wide one, and what must not depend on how a text is cut.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/attention/strategy_registry.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

using Floats = std::vector<float>;

constexpr int kTrainedLength = 128;

class SealedCache : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static void SetUpTestSuite() {
    dir_ = new ScratchDir;
    TinyShape shape;
    shape.trained_length = kTrainedLength;
    WriteTinyModel(shape, dir_->path() + "/model");
    for (const char* dtype : {"fp32", "bf16", "int8", "int4"}) {
      models_[dtype] = LoadTestModel(dir_->path() + "/model", {.kv_dtype = dtype});
    }
  }
  static void TearDownTestSuite() {
    models_.clear();
    delete dir_;
  }
  AttentionPlan Plan(const std::string& position = "plain") const {
    const auto spec =
        ResolveAttention({{strategy_, {}}, {position, {}}}, {}, model_->attention, {1000, false});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanFor(*spec, model_->attention, kUnbounded);
  }

  void ExpectCloseToAWideOne(const AttentionPlan& plan, bool chooses) const {
    const auto tokens = RandomTokens(3 * kTrainedLength, 64, 5);
    const auto exact = AllLogits(models_["fp32"].get(), plan, tokens, {512});
    const auto logits = AllLogits(model_, plan, tokens, {512});
    const float difference = MaxAbsDifference(exact, logits);
    EXPECT_LE(difference, chooses ? 5.0f : dtype_ == "int8" ? 0.3f : 2.0f);
    double mean = 0;
    for (size_t n = 0; n < exact.size(); ++n) mean += std::abs(exact[n] - logits[n]);
    EXPECT_LE(mean / static_cast<double>(exact.size()), dtype_ == "int8" ? 0.03 : 0.3);
  }
  void ExpectSameBitsInAnyChunking(const AttentionPlan& plan) const {
    const auto tokens = RandomTokens(3 * kTrainedLength + 5, 64, 6);
    const auto whole = AllLogits(model_, plan, tokens, {512});
    for (const std::vector<int>& pieces : {std::vector<int>{1}, {7}, {16}, {100, 1, 33, 2}}) {
      EXPECT_EQ(whole, AllLogits(model_, plan, tokens, pieces)) << pieces[0];
    }
  }

  static ScratchDir* dir_;
  static std::map<std::string, std::unique_ptr<LoadedModel>> models_;
  const std::string dtype_ = std::get<0>(GetParam());
  const std::string strategy_ = std::get<1>(GetParam());
  LoadedModel* const model_ = models_[dtype_].get();
};

ScratchDir* SealedCache::dir_ = nullptr;
std::map<std::string, std::unique_ptr<LoadedModel>> SealedCache::models_;

TEST_P(SealedCache, IsCloseToAWideOne) {
  EXPECT_EQ(model_->info.kv_dtype, dtype_);
  // Chunks that score alike may change places.
  ExpectCloseToAWideOne(Plan(), strategy_ == "long_heads");
}

TEST_P(SealedCache, PagesThatAreNotCompleteAreWide) {
  const auto tokens = RandomTokens(16, 64, 9);
  EXPECT_EQ(AllLogits(models_["bf16"].get(), Plan(), tokens, {5}),
            AllLogits(model_, Plan(), tokens, {5}));
  const auto longer = RandomTokens(100, 64, 9);
  EXPECT_NE(AllLogits(models_["bf16"].get(), Plan(), longer, {5}),
            AllLogits(model_, Plan(), longer, {5}));
}

TEST_P(SealedCache, AnyChunkingGivesTheSameBits) { ExpectSameBitsInAnyChunking(Plan()); }

// Keys of complete pages as bf16, and single values of them.
TEST_P(SealedCache, AnyChunkingChoosesTheSameMiddleTokens) {
  if (strategy_ != "lm_infinite") GTEST_SKIP() << "of LM-Infinite";
  const auto spec = ResolveAttention(
      {{strategy_, {{"top_tokens", 5}, {"top_from_layer", 0}, {"top_all_rows", 1}}}, {}}, {},
      model_->attention, {1000, false});
  const AttentionPlan plan = PlanFor(*spec, model_->attention, kUnbounded);
  ExpectSameBitsInAnyChunking(plan);
  ExpectCloseToAWideOne(plan, true);
}

// Each completes pages, or a chunk, that the others still share.
TEST_P(SealedCache, ForksGoTheirOwnWays) {
  const auto document = RandomTokens(2 * kTrainedLength + 13, 64, 7);
  Stream origin(model_, Plan());
  const auto feed = [&](std::vector<Stream*> streams, const std::vector<std::vector<int32_t>>& of) {
    StepBatch batch;
    std::vector<int32_t> ids;
    std::vector<int> rows;
    for (size_t n = 0; n < streams.size(); ++n) {
      const int count = static_cast<int>(of[n].size());
      batch.slices.push_back(streams[n]->Next(batch.num_rows, count));
      batch.num_rows += count;
      ids.insert(ids.end(), of[n].begin(), of[n].end());
      rows.push_back(batch.num_rows - 1);
    }
    const auto logits = model_->transformer->Forward(batch, ids, rows);
    const Floats copy(logits.begin(), logits.end());
    for (size_t n = 0; n < streams.size(); ++n) streams[n]->Done(static_cast<int>(of[n].size()));
    return copy;
  };
  feed({&origin}, {document});
  const std::vector<std::vector<int32_t>> parts = {RandomTokens(40, 64, 21),
                                                   RandomTokens(3, 64, 22)};
  std::vector<Floats> alone;
  for (const auto& part : parts) {
    std::vector<int32_t> text = document;
    text.insert(text.end(), part.begin(), part.end());
    const auto all = AllLogits(model_, Plan(), text, {512});
    alone.emplace_back(all.end() - 64, all.end());
  }
  Stream first = origin.Fork();
  Stream second = origin.Fork();
  Stream third = origin.Fork();
  const Floats together = feed({&first, &second, &third}, {parts[0], parts[1], parts[0]});
  EXPECT_EQ(Floats(together.begin(), together.begin() + 64), alone[0]);
  EXPECT_EQ(Floats(together.begin() + 64, together.begin() + 128), alone[1]);
  EXPECT_EQ(Floats(together.begin() + 128, together.end()), alone[0]);
}

TEST_P(SealedCache, NothingIsLeftAndCompletePagesAreSmall) {
  const KvStore& store = *model_->store;
  EXPECT_EQ(store.used_page_bytes() + store.used_summary_bytes(), 0);
  const auto bytes_of = [&](const std::string& dtype) {
    LoadedModel* const model = models_[dtype].get();
    Stream stream(model, Plan());
    const auto tokens = RandomTokens(512, 64, 3);
    StepBatch batch;
    batch.num_rows = 512;
    batch.slices.push_back(stream.Next(0, 512));
    model->transformer->Forward(batch, tokens, {});
    stream.Done(512);
    return model->store->FootprintOf(stream.kv()).device_bytes;
  };
  // Rounded up to pages of the system, which this model's slices are below.
  EXPECT_LT(bytes_of(dtype_), bytes_of("fp32"));
  EXPECT_EQ(store.used_page_bytes(), 0);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const AttentionStrategy* strategy : AllStrategies()) {
    if (strategy->name() != "truncation") names.push_back(strategy->name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Strategies, SealedCache,
                         testing::Combine(testing::Values("int8", "int4"),
                                          testing::ValuesIn(Names())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace folio::test
