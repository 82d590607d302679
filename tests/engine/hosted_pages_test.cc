// Pages of a device with the host's memory below it, against a plain reference: where each lies,
// when it is copied home, what of it is counted, and what sequences that do not fit are told.
#include "engine/kv/hosted_pages.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "engine/kv/kv_store.h"
#include "gtest/gtest.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

// 2 layers, 2 KV heads of 32 dimensions, pages of 16 tokens in fp32: 16 KiB.
constexpr KvGeometry kGeometry{.num_layers = 2,
                               .num_heads = 2,
                               .num_kv_heads = 2,
                               .head_dim = 32,
                               .padded_dim = 32,
                               .page_tokens = 16,
                               .dtype = DType::kF32};
constexpr int kStepTokens = 64;
constexpr int64_t kPage = 16 << 10;

class FakeTier final : public HostTier {
 public:
  absl::Status Setup(const Layout& layout) override {
    layout_ = layout;
    home_.resize(static_cast<size_t>(layout.max_pages * layout.page_bytes));
    return absl::OkStatus();
  }
  void WriteHome(FrameId page, const std::byte* frame) override {
    std::memcpy(Page(page), frame, static_cast<size_t>(layout_.page_bytes));
    ++num_written_;
  }
  std::byte* Page(FrameId page) override { return home_.data() + page * layout_.page_bytes; }
  void Forget(FrameId page) override { forgotten_.push_back(page); }
  SliceReads counts() const override { return {.hits = 7}; }
  SliceReads CountsOf(int reader) const override { return {.misses = reader}; }

  const std::vector<FrameId>& forgotten() const { return forgotten_; }
  const Layout& layout() const { return layout_; }
  int num_written() const { return num_written_; }

 private:
  Layout layout_;
  std::vector<std::byte> home_;
  int num_written_ = 0;
  std::vector<FrameId> forgotten_;
};

AttentionPlan PlanOf(int64_t window) {
  AttentionPlan plan;
  plan.retention.window_tokens = window;
  return plan;
}

class HostedPagesTest : public testing::Test {
 protected:
  absl::Status Create(int64_t memory_bytes, int64_t home_bytes) {
    auto store =
        KvStore::Create(kGeometry, memory_bytes, HostMemory(),
                        {.host = &tier_, .home_bytes = home_bytes, .step_tokens = kStepTokens});
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    return absl::OkStatus();
  }

  // The first word of a page, wherever it lies.
  int32_t& WordOf(FrameId page) {
    const FrameId place = store_->page_places()[page];
    std::byte* const at = place >= 0 ? store_->frame_memory().Frame(place) : tier_.Page(~place);
    return *reinterpret_cast<int32_t*>(at);
  }
  bool IsHome(FrameId page) const { return store_->page_places()[page] < 0; }

  FakeTier tier_;
  std::unique_ptr<KvStore> store_;
  const AttentionPlan full_ = PlanOf(kUnbounded);
};

TEST_F(HostedPagesTest, CompletePagesGoHomeAndGiveTheirFramesBack) {
  ASSERT_TRUE(Create(64 * kPage, 32 * kPage).ok());
  EXPECT_EQ(store_->home(), Tier::kHost);
  EXPECT_EQ(store_->capacity_bytes(), 32 * kPage);
  // A quarter is for frames.
  EXPECT_EQ(tier_.layout().cache_bytes, 48 * kPage);
  EXPECT_EQ(tier_.layout().max_pages, 32);
  EXPECT_EQ(tier_.layout().page_bytes, kPage);
  SequenceKv kv;
  ASSERT_TRUE(store_->Extend(full_, 0, 40, &kv).ok());
  for (int n = 0; n < 3; ++n) WordOf(kv.pages[n]) = 100 + n;
  EXPECT_EQ(store_->used_page_bytes(), 3 * kPage);
  store_->Seal(full_, 40, &kv);
  EXPECT_EQ(tier_.num_written(), 2);
  EXPECT_TRUE(IsHome(kv.pages[0]) && IsHome(kv.pages[1]) && !IsHome(kv.pages[2]));
  for (int n = 0; n < 3; ++n) EXPECT_EQ(WordOf(kv.pages[n]), 100 + n);
  EXPECT_EQ(store_->used_page_bytes(), kPage);
  EXPECT_EQ(store_->used_home_bytes(), 2 * kPage);
  EXPECT_EQ(store_->FootprintOf(kv), (KvFootprint{.device_bytes = kPage, .host_bytes = 2 * kPage}));
  EXPECT_EQ(store_->LargestFootprint(
                full_, {.prompt_tokens = 40, .total_tokens = 40, .step_tokens = kStepTokens}),
            store_->FootprintOf(kv));
  store_->Seal(full_, 40, &kv);
  EXPECT_EQ(tier_.num_written(), 2) << "once";
  store_->Release(&kv);
  EXPECT_EQ(store_->used_page_bytes() + store_->used_home_bytes(), 0);
}

TEST_F(HostedPagesTest, APageThatAnotherStillWritesStays) {
  ASSERT_TRUE(Create(64 * kPage, 32 * kPage).ok());
  SequenceKv kv;
  ASSERT_TRUE(store_->Extend(full_, 0, 20, &kv).ok());
  WordOf(kv.pages[1]) = 5;
  SequenceKv fork = store_->Fork(kv);
  // What it writes is its own, and begins as what it was.
  ASSERT_TRUE(store_->Extend(full_, 20, 20, &fork).ok());
  EXPECT_NE(fork.pages[1], kv.pages[1]);
  EXPECT_EQ(WordOf(fork.pages[1]), 5);
  WordOf(fork.pages[1]) = 6;
  store_->Seal(full_, 40, &fork);
  EXPECT_TRUE(IsHome(fork.pages[1]));
  EXPECT_FALSE(IsHome(fork.pages[0])) << "the other one has not sealed it";
  EXPECT_FALSE(IsHome(kv.pages[1]));
  store_->Release(&kv);
  EXPECT_TRUE(IsHome(fork.pages[0]));
  EXPECT_EQ(WordOf(fork.pages[1]), 6);
  store_->Release(&fork);
  EXPECT_EQ(store_->used_page_bytes() + store_->used_home_bytes(), 0);
}

TEST_F(HostedPagesTest, PagesOfAWindowStayOnTheDevice) {
  ASSERT_TRUE(Create(64 * kPage, 32 * kPage).ok());
  const AttentionPlan window = PlanOf(32);
  SequenceKv kv;
  for (int n = 0; n < 20; ++n) {
    ASSERT_TRUE(store_->Extend(window, n * 16, 16, &kv).ok());
    store_->Trim(window, n * 16 + 16, &kv);
    store_->Seal(window, n * 16 + 16, &kv);
  }
  EXPECT_EQ(tier_.num_written(), 0);
  EXPECT_EQ(store_->FootprintOf(kv).host_bytes, 0);
  store_->Release(&kv);
}

// A text is charged what it takes at home, or its share of the frames that it holds.
TEST_F(HostedPagesTest, AdmissionCountsHomeAndFrames) {
  ASSERT_TRUE(Create(64 * kPage, 1024 * kPage).ok());
  EXPECT_EQ(store_->BytesNeeded(full_, 16 * 1000, kStepTokens, 0), 1000 * kPage);
  // Frames: 16 pages, 5 of them for what a step writes; a window of 64 tokens and a step hold 9.
  const int64_t window = store_->BytesNeeded(PlanOf(64), 16 * 1000, kStepTokens, 0);
  EXPECT_EQ(window, static_cast<int64_t>(std::ceil(9 * kPage * (1024.0 / 11))));
  EXPECT_TRUE(store_->Reserve(window));
  EXPECT_FALSE(store_->Reserve(window)) << "two of them have no frames";
}

TEST_F(HostedPagesTest, BudgetsThatHoldNoStepAreRefusedWithTheArithmetic) {
  const absl::Status small = Create(6 * kPage, 32 * kPage);
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(small.message().find("holds not even one step: 81920 bytes of pages that are written"),
            std::string::npos)
      << small;
  const absl::Status no_home = Create(64 * kPage, kPage - 1);
  EXPECT_NE(no_home.message().find("--kv-host-bytes of 16383 is smaller than one page of 16384"),
            std::string::npos)
      << no_home;
}

TEST_F(HostedPagesTest, ReadsAreThoseOfTheTier) {
  ASSERT_TRUE(Create(64 * kPage, 32 * kPage).ok());
  EXPECT_EQ(store_->reads().hits, 7);
  EXPECT_EQ(store_->ReadsOf(3).misses, 3);
}

TEST_F(HostedPagesTest, RestoredPagesAreAtHomeAndNothingOlderIsReadOfThem) {
  ASSERT_TRUE(Create(64 * kPage, 32 * kPage).ok());
  SequenceKv kv;
  ASSERT_TRUE(store_
                  ->Restore(
                      full_, 40, [](FrameId, int64_t) {}, &kv)
                  .ok());
  EXPECT_EQ(kv.open_page, 2);
  EXPECT_TRUE(IsHome(kv.pages[0]) && IsHome(kv.pages[1]) && !IsHome(kv.pages[2]));
  EXPECT_EQ(tier_.forgotten(), (std::vector<FrameId>{kv.pages[0], kv.pages[1]}));
  EXPECT_EQ(store_->used_home_bytes(), 2 * kPage);
  store_->Release(&kv);
  EXPECT_EQ(store_->used_page_bytes() + store_->used_home_bytes(), 0);
}

TEST_F(HostedPagesTest, RandomWorkLeavesEveryPageAsItWasWritten) {
  ASSERT_TRUE(Create(64 * kPage, 24 * kPage).ok());
  struct Model {
    SequenceKv kv;
    int64_t num_tokens = 0;
    std::vector<int32_t> words;
  };
  std::mt19937_64 random(test::TestSeed() + 3);
  std::map<int, Model> models;
  int next = 0;
  int32_t word = 0;
  for (int op = 0; op < 3000; ++op) {
    const uint64_t kind = random() % 10;
    const auto any = [&] { return std::next(models.begin(), random() % models.size()); };
    if (kind == 0 || models.empty()) {
      models[next++];
    } else if (kind == 1 && models.size() > 3) {
      const auto it = any();
      store_->Release(&it->second.kv);
      models.erase(it);
    } else if (kind == 2 && models.size() < 5) {
      Model fork = any()->second;
      fork.kv = store_->Fork(fork.kv);
      models[next++] = fork;
    } else {
      Model& model = any()->second;
      const int64_t count = 1 + random() % 24;
      const absl::Status grown = store_->Extend(full_, model.num_tokens, count, &model.kv);
      if (!grown.ok()) {
        EXPECT_EQ(grown.code(), absl::StatusCode::kResourceExhausted);
        store_->Release(&model.kv);
        model = {};
      } else {
        model.words.resize(model.kv.pages.size());
        for (int64_t page = model.num_tokens / 16; page < std::ssize(model.kv.pages); ++page) {
          WordOf(model.kv.pages[page]) = model.words[page] = ++word;
        }
        model.num_tokens += count;
        if (random() % 3 != 0) store_->Seal(full_, model.num_tokens, &model.kv);
      }
    }
    std::map<FrameId, bool> pages;
    for (const auto& [id, model] : models) {
      for (size_t n = 0; n < model.kv.pages.size(); ++n) {
        ASSERT_EQ(WordOf(model.kv.pages[n]), model.words[n]) << "operation " << op;
        pages[model.kv.pages[n]] = IsHome(model.kv.pages[n]);
      }
    }
    int64_t home = 0;
    for (const auto& [id, is_home] : pages) home += is_home;
    ASSERT_EQ(store_->used_home_bytes(), home * kPage);
    ASSERT_EQ(store_->used_page_bytes(), (std::ssize(pages) - home) * kPage);
  }
  EXPECT_GT(tier_.num_written(), 100);
  for (auto& [id, model] : models) store_->Release(&model.kv);
  EXPECT_EQ(store_->used_page_bytes() + store_->used_home_bytes(), 0);
}

}  // namespace
}  // namespace folio
