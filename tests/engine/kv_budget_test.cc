// Whatever is admitted can be allocated, on memory that is taken whole as on the host's: random
// sequences of all kinds are admitted as long as the budget has room, grow to their last token, are
// forked and freed, and take nothing but the frames of the two pools.
#include <list>
#include <random>

#include "engine/sched/scheduler.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

// A device: what is allocated is taken at once.
class DeviceMemory final : public Memory {
 public:
  int64_t available_bytes() const override { return int64_t{1} << 40; }
  bool commits_at_once() const override { return true; }
  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    allocated_bytes += bytes;
    return HostMemory()->Allocate(bytes);
  }
  void Free(std::byte* base, int64_t bytes) override {
    allocated_bytes -= bytes;
    HostMemory()->Free(base, bytes);
  }
  void Discard(std::byte*, int64_t) override {}
  int64_t discard_bytes() const override { return HostMemory()->discard_bytes(); }
  void Copy(std::byte*, const std::byte*, int64_t) override {}
  void Write(std::byte*, const void*, int64_t) override {}
  void ReadPieces(std::span<const Piece>) override {}
  std::span<const float> Read(const float*, int64_t) override { return {}; }

  int64_t allocated_bytes = 0;
};

// Shapes of Llama 2 (as many KV heads as heads) and 3 (a quarter), and of one KV head for 71 heads,
// of few layers; frames that are no whole system pages.
KvGeometry Geometry(int num_heads, int num_kv_heads, int page_tokens, DType dtype,
                    int sealed_bits = 0) {
  return {.num_layers = 3,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = 64,
          .padded_dim = 64,
          .page_tokens = page_tokens,
          .dtype = dtype,
          .sealed_bits = sealed_bits};
}
const KvGeometry kGeometries[] = {
    Geometry(8, 8, 64, DType::kBf16),    Geometry(8, 2, 64, DType::kBf16),
    Geometry(71, 1, 64, DType::kBf16),   Geometry(4, 2, 16, DType::kF32),
    Geometry(3, 1, 16, DType::kBf16),    Geometry(8, 2, 64, DType::kBf16, 8),
    Geometry(8, 8, 32, DType::kBf16, 4),
};

class KvBudget : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static constexpr int kStepTokens = 300;

  AttentionPlan RandomPlan() {
    AttentionPlan plan;
    plan.stages.emplace_back();
    const int kind = Below(4);
    if (kind == 1) plan.retention = {.window_tokens = 100 + Below(300), .num_sinks = Below(40)};
    if (kind < 2) return plan;
    plan.selection.chunk_tokens = geometry_.page_tokens * (1 + Below(6));
    plan.selection.num_free_picks = 1;
    plan.selection.scorer = static_cast<ChunkSelection::Scorer>(Below(4));
    return plan;
  }
  int Below(int end) { return static_cast<int>(random_() % end); }

  Sequence* Add(const AttentionPlan& plan, int64_t num_tokens, const Sequence* prefix) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.plan = plan;
    sequence.num_known = sequence.max_tokens = num_tokens;
    sequence.prefix = prefix;
    return &sequence;
  }
  void Remove(std::list<Sequence>::iterator at) {
    scheduler_->Remove(&*at);
    sequences_.erase(at);
  }
  // Runs until everything that was admitted is complete.
  void RunAll() {
    for (;;) {
      const std::vector<ScheduledTokens> step = scheduler_->NextStep();
      for (const auto& failure : scheduler_->failures()) ADD_FAILURE() << failure.status;
      ASSERT_TRUE(scheduler_->failures().empty());
      if (step.empty()) return;
      if (!on_device_) {
        ASSERT_LE(store_->used_page_bytes() + store_->used_summary_bytes(), store_->memory_bytes());
      }
      scheduler_->Commit(step);
      ASSERT_EQ(memory_.allocated_bytes, planned_bytes_);
    }
  }

  const KvGeometry geometry_ = kGeometries[std::get<0>(GetParam())];
  const bool on_device_ = std::get<1>(GetParam());
  DeviceMemory memory_;
  std::mt19937_64 random_{17};
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Scheduler> scheduler_;
  std::list<Sequence> sequences_;
  int64_t planned_bytes_ = 0;
};

TEST_P(KvBudget, HoldsWhateverIsAdmitted) {
  if (on_device_ && geometry_.sealed_bits != 0) GTEST_SKIP() << "pages of integers are the host's";
  // Few pages per sequence, so that pools run out in every way.
  const int64_t capacity = 700 * geometry_.frame_bytes();
  store_ = *KvStore::Create(geometry_, capacity, on_device_ ? &memory_ : HostMemory(),
                            {.step_tokens = kStepTokens});
  planned_bytes_ = memory_.allocated_bytes;
  if (on_device_) {
    EXPECT_LE(planned_bytes_, capacity + KvStore::SummaryPoolBytes(geometry_, capacity, true));
  }
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerOptions{.step_tokens = kStepTokens, .prefill_share_tokens = 150}, store_.get());
  int num_refused = 0;
  int num_forks = 0;
  for (int round = 0; round < 12; ++round) {
    // Many short ones in some rounds, few long ones in others.
    const int longest = round % 3 == 0 ? geometry_.page_tokens : 40 * geometry_.page_tokens;
    const AttentionPlan plan = round % 3 == 0 ? RandomPlan() : AttentionPlan();
    for (bool full = false; !full;) {
      Sequence* sequence = Add(round % 3 == 0 ? plan : RandomPlan(), 1 + Below(longest), nullptr);
      full = !scheduler_->Admit(sequence);
      if (full) sequences_.pop_back();
    }
    ++num_refused;
    RunAll();
    // Some go, and forks of those that stay go on from where they are.
    for (auto it = sequences_.begin(); it != sequences_.end();) {
      const auto at = it++;
      if (at->prefix != nullptr || Below(3) > 0) Remove(at);
    }
    std::vector<Sequence*> origins;
    for (Sequence& sequence : sequences_) origins.push_back(&sequence);
    for (Sequence* origin : origins) {
      const int64_t tokens = origin->num_in_kv + 1 + Below(2 * geometry_.page_tokens);
      Sequence* fork = Add(origin->plan, tokens, origin);
      if (scheduler_->Admit(fork)) {
        ++num_forks;
      } else {
        sequences_.pop_back();
      }
    }
    RunAll();
    for (auto it = sequences_.begin(); it != sequences_.end();) {
      const auto at = it++;
      if (at->prefix != nullptr) Remove(at);
    }
    while (sequences_.size() > 2) Remove(sequences_.begin());
  }
  EXPECT_EQ(num_refused, 12);
  EXPECT_GT(num_forks, 20);
  while (!sequences_.empty()) Remove(sequences_.begin());
  EXPECT_EQ(store_->reserved_bytes(), 0);
  EXPECT_EQ(store_->used_page_bytes() + store_->used_summary_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, KvBudget,
    testing::Combine(testing::Range(0, static_cast<int>(std::size(kGeometries))), testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<1>(info.param) ? "device" : "host") +
             std::to_string(std::get<0>(info.param));
    });

TEST(KvStore, QueriesAreKeptOnlyForScorersThatReadThem) {
  const KvGeometry geometry = Geometry(8, 2, 64, DType::kBf16);
  const auto store = *KvStore::Create(geometry, 100 * geometry.frame_bytes(), HostMemory());
  AttentionPlan plan;
  plan.selection.chunk_tokens = 128;
  for (const auto& [scorer, frames] :
       {std::pair(ChunkSelection::Scorer::kMeanKey, 0),
        {ChunkSelection::Scorer::kQuest, 0},
        // 128 tokens x 24 heads x 64 numbers: as many as 4 pages hold.
        {ChunkSelection::Scorer::kLongHeads, 4},
        {ChunkSelection::Scorer::kRepresentatives, 4}}) {
    plan.selection.scorer = scorer;
    SequenceKv kv;
    ASSERT_TRUE(store->Extend(plan, 0, 130, &kv).ok());
    EXPECT_EQ(kv.pending_queries.size(), size_t(frames));
    EXPECT_EQ(store->used_page_bytes(), (3 + frames) * geometry.frame_bytes());
    store->Release(&kv);
  }
}

}  // namespace
}  // namespace folio
