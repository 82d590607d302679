// The cache with two tiers beside a plain reference: random operations, with disks that refuse
// writes, reads that flip bytes, and allocations that fail. Complete pages are as they were written
// or integers.
#include <future>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/runtime/segment_home.h"
#include "engine/types/plan_reading.h"
#include "gtest/gtest.h"
#include "tests/engine/faulty_home.h"
#include "tests/engine/memory_files.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kSteps = 5000;
constexpr int kPhase = 500;
constexpr int kStepTokens = 48;
KvGeometry GeometryWith(int sealed_bits) {
  return {.num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 32,
          .padded_dim = 32,
          .page_tokens = 16,
          .dtype = sealed_bits == 0 ? DType::kF32 : DType::kBf16,
          .sealed_bits = sealed_bits};
}

// A sequence, and what it should hold: a number for each frame.
struct Model {
  AttentionPlan plan;
  SequenceKv kv;
  int64_t num_tokens = 0;
  int64_t max_tokens = 0;
  int64_t reserved = 0;
  bool forked = false;  // or has been
  std::map<int64_t, int64_t> pages;
  std::vector<int64_t> sinks;
  std::vector<int64_t> pending;
  std::vector<int64_t> summaries;
};

class KvModel : public testing::TestWithParam<int>, SaysTestSeed {
 protected:
  KvModel() {
    EXPECT_TRUE(files_.MakeDirectory("pages").ok());
    SegmentHomeOptions options;
    options.num_slices = geometry_.num_slices();
    options.slice_bytes = slot_bytes_;
    options.num_readers = 2;
    segments_ = *SegmentHome::Create(&files_, "pages", options);
    home_ = std::make_unique<ForgetfulHome>(segments_.get());
    store_ = *KvStore::Create(
        geometry_, 40 * page_bytes_, HostMemory(),
        {.home = home_.get(), .home_bytes = 200 * page_bytes_, .step_tokens = kStepTokens});
  }

  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  Model* Any() {
    if (models_.empty()) return nullptr;
    auto at = models_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(Below(models_.size())));
    return &*at;
  }
  AttentionPlan AnyPlan() {
    AttentionPlan plan;
    plan.stages.emplace_back();
    switch (Below(4)) {
      case 0:
        plan.retention = {static_cast<int64_t>(40 + Below(60)), 20};
        break;
      case 1:
        plan.selection.scorer = ChunkSelection::Scorer::kLongHeads;
        plan.selection.chunk_tokens = 24;
        break;
      case 2:
        plan.selection.scorer = ChunkSelection::Scorer::kQuest;
        plan.selection.chunk_tokens = 16;
        break;
      default:
        break;
    }
    return plan;
  }

  static void Fill(std::byte* at, int64_t bytes, int64_t number) {
    std::fill_n(reinterpret_cast<int64_t*>(at), bytes / 8, number);
  }
  static bool Holds(const std::byte* at, int64_t bytes, int64_t number) {
    const auto* numbers = reinterpret_cast<const int64_t*>(at);
    return std::all_of(numbers, numbers + bytes / 8, [&](int64_t n) { return n == number; });
  }
  bool IsInMemory(FrameId id, int slice) const {
    return store_->page_memory().slots[int64_t{id} * geometry_.num_slices() + slice] != kNoSlot;
  }
  bool PageHolds(FrameId id, int slice, int64_t number) const {
    return IsInMemory(id, slice) &&
           Holds(store_->page_memory().Slice(id, slice), slot_bytes_, number * 16 + slice);
  }
  bool PageHolds(FrameId id, int64_t number) const {
    for (int slice = 0; slice < geometry_.num_slices(); ++slice) {
      if (!PageHolds(id, slice, number)) return false;
    }
    return true;
  }
  bool OpenPageHolds(FrameId id, int64_t number) const {
    if (!store_->seals()) return PageHolds(id, number);
    const FrameMemory memory = store_->frame_memory();
    return Holds(memory.Frame(store_->OpenFrameOf(id)), memory.frame_bytes, number);
  }
  void WritePage(FrameId id, int64_t number) {
    for (int slice = 0; slice < geometry_.num_slices(); ++slice) {
      Fill(store_->page_memory().Slice(id, slice), slot_bytes_, number * 16 + slice);
    }
  }
  void WriteOpenPage(FrameId id, int64_t number) {
    if (!store_->seals()) return WritePage(id, number);
    const FrameMemory memory = store_->frame_memory();
    Fill(memory.Frame(store_->OpenFrameOf(id)), memory.frame_bytes, number);
  }
  void WriteFrames(const FrameMemory& memory, const std::vector<FrameId>& frames, int64_t first,
                   std::vector<int64_t>* numbers) {
    numbers->resize(frames.size());
    for (size_t n = static_cast<size_t>(first); n < frames.size(); ++n) {
      Fill(memory.Frame(frames[n]), memory.frame_bytes, (*numbers)[n] = ++last_number_);
    }
  }

  void Begin() {
    Model model;
    model.plan = AnyPlan();
    model.max_tokens = 1 + static_cast<int64_t>(Below(600));
    model.reserved = store_->BytesNeeded(model.plan, model.max_tokens, kStepTokens, 0);
    if (store_->Reserve(model.reserved)) models_.push_back(std::move(model));
  }

  void End(Model* model) {
    store_->Release(&model->kv);
    store_->Unreserve(model->reserved);
    models_.remove_if([&](const Model& other) { return &other == model; });
  }

  void Fork(Model* origin) {
    if (origin->num_tokens == 0) return;
    Model fork = *origin;
    fork.max_tokens = origin->num_tokens + 1 + static_cast<int64_t>(Below(200));
    fork.reserved =
        store_->BytesNeeded(fork.plan, fork.max_tokens, kStepTokens, origin->num_tokens);
    if (!store_->Reserve(fork.reserved)) return;
    fork.kv = store_->Fork(origin->kv);
    fork.forked = origin->forked = true;
    models_.push_back(std::move(fork));
  }

  // One step of a sequence: room, new values, and what the scheduler does after it.
  void Extend(Model* model) {
    const int64_t before = model->num_tokens;
    const auto count =
        std::min<int64_t>(model->max_tokens - before, 1 + static_cast<int64_t>(Below(kStepTokens)));
    if (count == 0) return;
    const absl::Status extended = store_->Extend(model->plan, before, count, &model->kv);
    if (!extended.ok()) {
      EXPECT_TRUE(had_faults_) << extended;
      return End(model);
    }
    const int64_t total = model->num_tokens = before + count;
    const int64_t page = geometry_.page_tokens;
    for (int64_t p = before / page; p * page < total; ++p) {
      WriteOpenPage(model->kv.pages[p - model->kv.first_page], model->pages[p] = ++last_number_);
    }
    if (store_->seals()) CompletePages(total, model);
    WriteFrames(store_->frame_memory(), model->kv.sinks,
                std::min<int64_t>(before / page, std::ssize(model->kv.sinks)), &model->sinks);
    if (model->plan.selection.enabled()) WriteSummaries(before, model);
    store_->EndStep();
    store_->Trim(model->plan, total, &model->kv);
    store_->Seal(model->plan, total, &model->kv);
    std::erase_if(model->pages, [&](const auto& p) { return p.first < model->kv.first_page; });
  }
  // What the step makes of pages that it completes.
  void CompletePages(int64_t total, Model* model) {
    const int64_t end = store_->LayoutOf(model->plan, total).open_page;
    for (int64_t p = model->kv.open_page; p < end; ++p) {
      const FrameId id = model->kv.pages[p - model->kv.first_page];
      EXPECT_TRUE(OpenPageHolds(id, model->pages[p]));
      WritePage(id, model->pages[p]);
    }
  }
  void WriteSummaries(int64_t before, Model* model) {
    const ChunkSelection& selection = model->plan.selection;
    const int64_t chunk = selection.chunk_tokens;
    if (NeedsQueries(selection.scorer)) {
      const bool same = before / chunk == model->num_tokens / chunk;
      WriteFrames(store_->frame_memory(), model->kv.pending_queries,
                  PendingRows(geometry_).FrameOf(same ? before % chunk : 0), &model->pending);
    }
    WriteFrames(
        store_->summary_memory(), model->kv.summaries,
        std::min<int64_t>(
            SummaryLayoutOf(selection, geometry_.group_size()).FirstOpenFrame(before / chunk),
            std::ssize(model->kv.summaries)),
        &model->summaries);
  }

  // Some slices of some sequences, in one step.
  void Read() {
    std::map<std::pair<FrameId, int>, int64_t> wanted;
    const auto most = static_cast<size_t>(store_->slices()->wave_slices());
    for (int n = 0; n < 40 && wanted.size() < most; ++n) {
      const Model* model = Any();
      if (model == nullptr || model->pages.empty()) continue;
      const size_t place = Below(model->kv.pages.size());
      const int64_t page = model->kv.first_page + static_cast<int64_t>(place);
      // Attention does not read its integers yet.
      if (store_->seals() && page >= model->kv.open_page) continue;
      const int slice = static_cast<int>(Below(static_cast<size_t>(geometry_.num_slices())));
      wanted[{model->kv.pages[place], slice}] = model->pages.at(page);
    }
    std::vector<SliceKey> keys;
    for (const auto& [at, number] : wanted) {
      const int heads = geometry_.num_kv_heads;
      keys.push_back({at.first, at.second / heads, at.second % heads, static_cast<int>(Below(3))});
    }
    bool allocated = true;
    try {
      if (Below(2) == 0) store_->slices()->Need({}, keys);
      store_->slices()->Need(keys, {});
    } catch (const std::bad_alloc&) {
      allocated = false;  // the step fails
    }
    if (allocated) {
      for (const auto& [at, number] : wanted) {
        if (PageHolds(at.first, at.second, number)) {
          ++num_read_;
        } else {
          ++num_lost_;
          ASSERT_TRUE(IsLost(at.first))
              << (IsInMemory(at.first, at.second) ? "a wrong byte" : "not brought to memory");
          ASSERT_TRUE(had_faults_) << "lost without a fault";
        }
      }
    }
    store_->EndStep();
    // What has read something that is lost ends.
    std::vector<Model*> lost;
    for (Model& model : models_) {
      if (store_->HasLostPages(model.kv)) lost.push_back(&model);
    }
    for (Model* model : lost) End(model);
  }
  bool IsLost(FrameId id) const {
    SequenceKv one;
    one.pages = {id};
    return store_->HasLostPages(one);
  }

  void EndAll() {
    Drain();
    while (!models_.empty()) End(&models_.front());
    Drain();
    Drain();  // files go after the last pages in them are written
  }

  // All that was started has reached the disk.
  void Drain() {
    files_.full = false;
    home_->fails_next = false;
    std::promise<void> written;
    segments_->AfterWrites([&] { written.set_value(); });
    written.get_future().wait();
    store_->EndStep();
  }

  void CheckFrames(const Model& model) const {
    const SequenceKv& kv = model.kv;
    ASSERT_EQ(std::ssize(kv.pages), std::ssize(model.pages));
    const int64_t end = kv.first_page + std::ssize(kv.pages);
    for (int64_t p = kv.open_page; p < end; ++p) {
      ASSERT_TRUE(OpenPageHolds(kv.pages[p - kv.first_page], model.pages.at(p)));
    }
    for (int64_t p = kv.first_page; p < kv.open_page; ++p) {
      const FrameId id = kv.pages[p - kv.first_page];
      // Attention reads a page where it is open, whoever shares it.
      ASSERT_TRUE(!store_->seals() || store_->OpenFrameOf(id) == kNoFrame);
      // Pages of a window stay in memory.
      ASSERT_TRUE(!kv.is_window || PageHolds(id, model.pages.at(p)));
    }
    const auto check = [](const FrameMemory& memory, const std::vector<FrameId>& frames,
                          const std::vector<int64_t>& numbers) {
      ASSERT_EQ(frames.size(), numbers.size());
      for (size_t n = 0; n < frames.size(); ++n) {
        ASSERT_TRUE(Holds(memory.Frame(frames[n]), memory.frame_bytes, numbers[n]));
      }
    };
    check(store_->frame_memory(), kv.sinks, model.sinks);
    check(store_->frame_memory(), kv.pending_queries, model.pending);
    check(store_->summary_memory(), kv.summaries, model.summaries);
    const KvFootprint footprint = store_->FootprintOf(kv);
    const int64_t num_open = end - std::max(kv.open_page, kv.first_page + kv.num_shared_pages);
    ASSERT_EQ(footprint.device_bytes + footprint.disk_bytes + footprint.shared_bytes,
              std::ssize(kv.pages) * page_bytes_ + num_open * open_bytes() +
                  std::ssize(kv.sinks) * store_->frame_memory().frame_bytes);
  }

  // What an open page takes beside its place among the others.
  int64_t open_bytes() const { return store_->seals() ? store_->frame_memory().frame_bytes : 0; }

  void CheckGauges(bool drained) const {
    ASSERT_LE(store_->reserved_bytes(), store_->capacity_bytes());
    // Pages that the disk refuses cannot leave when sinks and summaries want their memory.
    const int64_t most = store_->memory_bytes() + (refuses_writes_ ? 2 * page_bytes_ : 0);
    ASSERT_LE(store_->used_page_bytes() + store_->used_summary_bytes(), most);
    std::set<FrameId> sealed;
    std::set<FrameId> open;
    std::set<FrameId> of_windows;
    std::set<FrameId> others;
    std::set<FrameId> summaries;
    for (const Model& model : models_) {
      const SequenceKv& kv = model.kv;
      const auto middle = kv.pages.begin() + (kv.open_page - kv.first_page);
      (kv.is_window ? of_windows : sealed).insert(kv.pages.begin(), middle);
      open.insert(middle, kv.pages.end());
      others.insert(kv.sinks.begin(), kv.sinks.end());
      others.insert(kv.pending_queries.begin(), kv.pending_queries.end());
      summaries.insert(kv.summaries.begin(), kv.summaries.end());
    }
    for (const FrameId id : open) {
      sealed.erase(id);
      of_windows.erase(id);
    }
    ASSERT_EQ(std::ssize(summaries) * store_->summary_memory().frame_bytes,
              store_->used_summary_bytes());
    ASSERT_GE(store_->used_page_bytes(),
              std::ssize(of_windows) * page_bytes_ +
                  std::ssize(open) * (page_bytes_ + open_bytes()) +
                  std::ssize(others) * store_->frame_memory().frame_bytes);
    ASSERT_LE(store_->used_home_bytes(), std::ssize(sealed) * page_bytes_);
    if (!drained) return;
    ASSERT_EQ(store_->used_home_bytes(), std::ssize(sealed) * page_bytes_);
    if (std::any_of(models_.begin(), models_.end(), [](const Model& m) { return m.forked; }))
      return;
    int64_t on_disk = 0;
    for (const Model& model : models_) on_disk += store_->FootprintOf(model.kv).disk_bytes;
    ASSERT_EQ(store_->used_home_bytes(), on_disk);
  }

  const KvGeometry geometry_ = GeometryWith(GetParam());
  const int64_t slot_bytes_ = FramePool::RoundedBytes(geometry_.sealed_slice_bytes());
  const int64_t page_bytes_ = slot_bytes_ * geometry_.num_slices();
  FaultyFiles files_{std::make_unique<MemoryFiles>()};
  std::unique_ptr<SegmentHome> segments_;
  std::unique_ptr<ForgetfulHome> home_;
  std::unique_ptr<KvStore> store_;
  std::list<Model> models_;
  std::mt19937_64 random_{TestSeed()};
  int64_t last_number_ = 0;
  int64_t num_read_ = 0;
  int64_t num_lost_ = 0;
  bool had_faults_ = false;
  bool refuses_writes_ = false;
};

TEST_P(KvModel, HoldsWhatThePlainReferenceDoes) {
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    // In every other phase all that was started is written.
    if (step % kPhase == 0) EndAll();
    refuses_writes_ = step / kPhase % 2 == 0;
    Model* const model = Any();
    switch (Below(16)) {
      case 0:
        Begin();
        break;
      case 1:
        if (model != nullptr) Fork(model);
        break;
      case 2:
        if (model != nullptr && Below(2) == 0) End(model);
        break;
      case 3:
        had_faults_ = true;
        files_.full = refuses_writes_ && Below(4) == 0;
        home_->fails_next = refuses_writes_ && Below(4) == 0;
        files_.flips_next_read = Below(4) == 0;
        break;
      case 4:
        Drain();
        had_faults_ = files_.flips_next_read = false;
        // What was refused is in memory until something else is short of it.
        CheckGauges(!refuses_writes_);
        break;
      case 5:
      case 6:
      case 7:
      case 8:
        Read();
        break;
      default:
        if (model != nullptr) Extend(model);
    }
    if (HasFatalFailure()) return;
    for (const Model& one : models_) CheckFrames(one);
    CheckGauges(false);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(num_read_, kSteps);
  EXPECT_GT(num_lost_, 0);
  std::cout << kSteps << " operations, " << num_read_ << " slices read, " << num_lost_ << " lost\n";
  EndAll();
  EXPECT_EQ(store_->used_home_bytes(), 0);
  EXPECT_EQ(store_->used_page_bytes(), 0);
  EXPECT_EQ(store_->used_summary_bytes(), 0);
  EXPECT_EQ(store_->reserved_bytes(), 0);
  EXPECT_TRUE(files_.List("pages")->empty());
}

INSTANTIATE_TEST_SUITE_P(SealedBits, KvModel, testing::Values(0, 8));

}  // namespace
}  // namespace folio::test
