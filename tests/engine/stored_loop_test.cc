// Stored documents on the engine thread: how they come back into memory, and when.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <random>

#include "tests/engine/stored_loop_fixture.h"

namespace folio::test {
namespace {

constexpr int kTokens = 20 * 16 + 5;

class Restoring : public StoredLoop {
 protected:
  // Rates under which all of a document is read in `read` seconds, and prefilled in `prefill`.
  void Measured(double read, double prefill, int num_tokens = kTokens) {
    loop_->restores().NoteRead(num_tokens / 16 * 4096, read);
    loop_->restores().NotePrefill(num_tokens, prefill);
  }
};

TEST_F(Restoring, ReadsWhereNothingWasMeasured) {
  UploadAndSave("book", kTokens);
  Restart();
  EXPECT_EQ(Ask("book"), kTokens);
  EXPECT_EQ(loop_->restores().num_read(), 1);
  EXPECT_EQ(runner_->tokens, 3 + 1);
}

TEST_F(Restoring, PrefillsWhereThatIsFasterAndKeepsWhatIsStored) {
  UploadAndSave("book", kTokens);
  Restart();
  Measured(20, 1);
  EXPECT_EQ(Ask("book"), 0);
  EXPECT_EQ(loop_->restores().num_prefilled(), 1);
  EXPECT_EQ(runner_->tokens, kTokens + 3 + 1);
  EXPECT_EQ(Ask("book"), kTokens) << "it is in memory now";
  EXPECT_EQ(loop_->restores().num_prefilled() + loop_->restores().num_read(), 1);
  EXPECT_EQ(keeper_->counts().saves, 0) << "what is stored was good";
  Restart();
  EXPECT_EQ(Ask("book"), kTokens);
}

// Of a document whose heads choose, the first token needs few pages; of a long question more.
TEST_F(Restoring, CountsWhatTheFirstTokenNeeds) {
  constexpr int kManyTokens = 3000;
  UploadAndSave("book", kManyTokens, "long_heads");
  const auto prefills = [&](int question_tokens) {
    Restart();
    Measured(2, 1, kManyTokens);
    return Ask("book", question_tokens) == 0;
  };
  EXPECT_FALSE(prefills(1));
  EXPECT_TRUE(prefills(200));
}

TEST_F(Restoring, ADocumentOfWhichNothingIsStoredIsNoChoice) {
  UploadAndSave("book", kTokens);
  EXPECT_EQ(Ask("book"), kTokens);
  EXPECT_EQ(loop_->restores().num_read() + loop_->restores().num_prefilled(), 0);
}

class Completing : public StoredLoop {
 protected:
  // Of an earlier process: its text is saved, and nothing of its cache.
  void LeaveTextOf(const std::string& id) {
    Upload(id, kTokens);
    WaitUntil([&] { return Info(id).saved_text_bytes == kTokens; });
    Restart();
    EXPECT_EQ(Info(id).state, DocumentState::kReady);
    EXPECT_EQ(Info(id).prefilled_tokens, 0);
  }
  void Complete(const std::string& id) { loop_->documents().CompleteLater({Info(id).handle}); }
  bool IsComplete(const std::string& id) const { return Info(id).prefilled_tokens == kTokens; }
};

TEST_F(Completing, GoesOnWithoutAQuestionAndSaves) {
  LeaveTextOf("book");
  Complete("book");
  RunUntil([&] { return IsComplete("book") && keeper_->counts().saves == 1; });
  EXPECT_EQ(runner_->tokens, kTokens);
  Restart();
  EXPECT_TRUE(IsComplete("book"));
  EXPECT_EQ(Ask("book"), kTokens);
}

TEST_F(Completing, WaitsForEverythingElse) {
  LeaveTextOf("book");
  const auto first = SubmitPrompt(100, 20);
  Complete("book");
  RunUntil([&] { return first->ended(); });
  EXPECT_EQ(Info("book").prefilled_tokens, 0);
  RunUntil([&] { return Info("book").prefilled_tokens > 0; });
  const int64_t before = Info("book").prefilled_tokens;
  EXPECT_LT(before, kTokens);
  const auto second = SubmitPrompt(100, 20);
  RunUntil([&] { return second->ended(); });
  EXPECT_EQ(Info("book").prefilled_tokens, before);
  Upload("other", kTokens);
  RunUntil([&] { return IsComplete("other"); });
  EXPECT_EQ(Info("book").prefilled_tokens, before);
  RunUntil([&] { return IsComplete("book"); });
}

TEST_F(Completing, AQuestionAboutItGoesFirst) {
  LeaveTextOf("book");
  Complete("book");
  RunUntil([&] { return Info("book").prefilled_tokens > 0; });
  const int64_t before = Info("book").prefilled_tokens;
  EXPECT_EQ(Ask("book"), before);
  EXPECT_EQ(runner_->tokens, kTokens + 3 + 1);
}

TEST_F(Completing, MakesRoomForOthersAndComesBack) {
  home_pages_ = kTokens / 16 + 10;
  LeaveTextOf("book");
  Complete("book");
  RunUntil([&] { return Info("book").prefilled_tokens > 0; });
  const auto answer = SubmitPrompt(kTokens - 50, 3);
  RunUntil([&] { return answer->ended(); });
  EXPECT_TRUE(answer->completed().has_value()) << answer->status();
  EXPECT_EQ(Info("book").prefilled_tokens, 0);
  RunUntil([&] { return IsComplete("book"); });
}

TEST_F(Completing, LeavesOutWhatHasNoRoomOrIsGone) {
  LeaveTextOf("book");
  LeaveTextOf("other");
  quota_bytes_ = 16 << 10;  // of the texts alone
  Restart();
  const auto handles = std::vector{Info("other").handle, Info("book").handle};
  loop_->documents().CompleteLater(handles);
  EXPECT_FALSE(loop_->RunStep());
  EXPECT_FALSE(loop_->documents().has_incomplete());
  quota_bytes_ = int64_t{64} << 20;
  Restart();
  loop_->documents().CompleteLater(handles);
  RunUntil([&] { return Info("book").prefilled_tokens > 0; });
  EXPECT_TRUE(directory_->Remove(handles[1]).ok());
  loop_->documents().Delete(handles[1], absl::NotFoundError("deleted"));
  RunUntil([&] { return IsComplete("other"); });
  EXPECT_TRUE(directory_->Remove(handles[0]).ok());
  loop_->documents().Delete(handles[0], absl::NotFoundError("deleted"));
  RunUntil([&] { return store_->reserved_bytes() == 0; });
}

// On disk there is room for the caches of two documents.
class DroppingCaches : public StoredLoop {
 protected:
  DroppingCaches() {
    UploadAndSave("a", kTokens);
    UploadAndSave("b", kTokens);
    quota_bytes_ = keeper_->usage().bytes.total() + (20 << 10);  // and the text of a third
    Restart();
  }
  void Update(const std::string& id, const std::function<void(DocumentAttributes*)>& change) {
    std::promise<void> done;
    keeper_->UpdateAttributes(Info(id).handle, change, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      done.set_value();
    });
    done.get_future().wait();
  }
  static void SetUsedLater(DocumentAttributes* attributes) {
    attributes->last_used_us = int64_t{1} << 60;
  }
  // Of those whose cache is on disk.
  std::string Stored() const {
    std::string ids;
    for (const auto& manifest : keeper_->List()) {
      if (!manifest->renditions.empty()) ids += manifest->id;
    }
    return ids;
  }
};

TEST_F(DroppingCaches, TheOneThatWasUsedLongestAgoGoes) {
  UploadAndSave("c", kTokens);
  EXPECT_EQ(Stored(), "bc");
  EXPECT_EQ(Ask("a"), 0);
}

TEST_F(DroppingCaches, AUseCounts) {
  Update("a", SetUsedLater);
  UploadAndSave("c", kTokens);
  EXPECT_EQ(Stored(), "ac");
}

TEST_F(DroppingCaches, WhatIsInMemoryStays) {
  EXPECT_EQ(Ask("a"), kTokens);
  UploadAndSave("c", kTokens);
  EXPECT_EQ(Stored(), "ac");
  EXPECT_EQ(Ask("a"), kTokens);
}

TEST_F(DroppingCaches, WhatIsPinnedStays) {
  Update("a", [](DocumentAttributes* one) { one->pinned = true; });
  Update("b", SetUsedLater);
  UploadAndSave("c", kTokens);
  EXPECT_EQ(Stored(), "ac");
}

class Receipts : public StoredLoop {
 protected:
  static constexpr int64_t kPage = 4096;  // of 16 tokens
};

TEST_F(Receipts, SayWhatIsTheQuestionsOwnAndWhatItShares) {
  UploadAndSave("book", kTokens);  // 20 pages, and one that is not full
  EXPECT_EQ(Info("book").disk_kv_bytes, 20 * kPage);
  EXPECT_EQ(Info("book").device_kv_bytes, kPage);
  EXPECT_EQ(Info("book").summary_bytes, 0);
  const auto answer = Submit("book", 100);  // 6 full pages more; the last of all is not
  RunUntil([&] { return answer->ended(); });
  ASSERT_TRUE(answer->completed().has_value()) << answer->status();
  const MemoryReceipt receipt = answer->completed()->memory;
  EXPECT_EQ(receipt.shared_kv_bytes, 20 * kPage);
  EXPECT_EQ(receipt.disk_kv_bytes_peak, 6 * kPage);
  EXPECT_EQ(receipt.device_kv_bytes_peak, kPage);
}

TEST_F(Receipts, SayWhatSummariesAndPendingQueriesTake) {
  UploadAndSave("book", kTokens, "long_heads");
  const CacheLayout layout = store_->LayoutOf(PlanFor(Attention("long_heads"), Model()), kTokens);
  EXPECT_GT(layout.num_summaries, 0);
  EXPECT_GT(layout.num_pending_queries, 0);
  EXPECT_EQ(Info("book").summary_bytes,
            layout.num_summaries * FramePool::RoundedBytes(kGeometry.summary_frame_bytes()) +
                layout.num_pending_queries * FramePool::RoundedBytes(kGeometry.frame_bytes()));
}

class WaitingForTheDisk : public StoredLoop {
 protected:
  // Its pages leave memory for another one's once it is saved, or read.
  void MakeSmall() {
    home_pages_ = kTokens / 16 + 10;
    Restart();
  }
  // What the keeper says is not heard yet.
  void BeginToRead(const std::string& id) {
    MakeSmall();
    UploadAndSave(id, kTokens);
    Restart();
    Submit(id);
    WaitUntil([&] { return loop_->documents().Find(Info(id).handle) != nullptr; });
    loop_->RunStep();
    EXPECT_TRUE(loop_->documents().moves_something());
    EXPECT_TRUE(loop_->Cancel(last_id_, absl::CancelledError("enough")));
  }
  void AskForMuch() {
    const auto answer = SubmitPrompt(kTokens - 50, 3);
    loop_->RunStep();
    loop_->RunStep();
    EXPECT_FALSE(answer->ended()) << answer->status();
    RunUntil([&] { return answer->ended(); });
    EXPECT_TRUE(answer->completed().has_value()) << answer->status();
  }
};

TEST_F(WaitingForTheDisk, ARequestIsNotRefusedWhileADocumentIsBeingSaved) {
  MakeSmall();
  Upload("book", kTokens);
  while (!loop_->documents().moves_something() || Info("book").state != DocumentState::kReady) {
    loop_->RunStep();  // what the keeper says is not heard
  }
  AskForMuch();
  EXPECT_TRUE(Info("book").saved);
}

TEST_F(WaitingForTheDisk, ARequestIsNotRefusedWhileADocumentIsBeingRead) {
  BeginToRead("book");
  AskForMuch();
}

TEST_F(WaitingForTheDisk, AnUploadIsNotRefusedWhileADocumentIsBeingRead) {
  BeginToRead("book");
  Upload("other", kTokens - 50);
  loop_->RunStep();
  ASSERT_TRUE(Info("other").short_of_room) << Info("other").error;
  RunUntil([&] { return Info("other").prefilled_tokens == kTokens - 50; });
}

// The own files of the home can be written or not.
class HomeThatTakesNothing : public StoredLoop {
 protected:
  static absl::Status FailWrites(const std::string& operation, const std::string& /*path*/) {
    return operation == "write" ? absl::ResourceExhaustedError("no space left") : absl::OkStatus();
  }
  void SetFault(MemoryFiles::Fault fault) {
    ASSERT_TRUE(home_->AwaitIdle(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
    page_files_.set_fault(std::move(fault));
  }
  const SequenceKv& KvOf(const std::string& id) {
    return loop_->documents().Find(Info(id).handle)->primary().sequence.kv;
  }
  // Its sealed pages, as they lie in memory or where the keeper says.
  std::vector<std::byte> PagesInMemory(const std::string& id) {
    std::vector<std::byte> pages;
    const SequenceKv& kv = KvOf(id);
    const SliceMemory memory = store_->page_memory();
    for (int64_t n = 0; n < kv.open_page; ++n) {
      for (int slice = 0; slice < kGeometry.num_slices(); ++slice) {
        const std::byte* const from = memory.Slice(kv.pages[static_cast<size_t>(n)], slice);
        pages.insert(pages.end(), from, from + kGeometry.slice_bytes());
      }
    }
    return pages;
  }
  std::vector<std::byte> PagesOfFiles(const std::string& id) {
    const auto slice_bytes = static_cast<size_t>(kGeometry.slice_bytes());
    std::vector<std::byte> pages;
    const auto places = keeper_->PlacesOf(*store_, KvOf(id));
    if (!places.ok()) return pages;
    for (const SegmentHome::Place& place : *places) {
      for (int slice = 0; slice < kGeometry.num_slices(); ++slice) {
        pages.resize(pages.size() + slice_bytes);
        std::byte* const to = pages.data() + pages.size() - slice_bytes;
        EXPECT_TRUE(place.file->Read(slice, place.page, {&to, 1}).ok());
      }
    }
    return pages;
  }
};

TEST_F(HomeThatTakesNothing, PagesAreSavedAsTheyAreInMemory) {
  SetFault(FailWrites);
  std::mt19937 random(7);
  std::byte* const memory = store_->page_memory().base;
  std::generate_n(memory, 200 * 4096, [&] { return static_cast<std::byte>(random()); });
  UploadAndSave("book", kTokens);
  ASSERT_EQ(KvOf("book").open_page, kTokens / 16);
  const std::vector<std::byte> pages = PagesInMemory("book");
  EXPECT_TRUE(store_->IsOnlyInMemory(KvOf("book").pages.front()));
  // Their places in files of the home stay theirs: they are still to be written there.
  ASSERT_TRUE(home_->AwaitIdle(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(page_files_.paths(), std::vector<std::string>{"pages/0"});

  // The home is asked again once the memory is full.
  const auto prompt = SubmitPrompt(190 * 16, 2);
  RunUntil([&] { return prompt->ended(); });
  EXPECT_TRUE(absl::IsResourceExhausted(prompt->status())) << prompt->status();
  SetFault(nullptr);
  EXPECT_EQ(Ask("book"), kTokens);
  EXPECT_EQ(PagesOfFiles("book"), pages);

  Restart();
  EXPECT_EQ(Ask("book"), kTokens);
  EXPECT_EQ(PagesOfFiles("book"), pages);
}

TEST_F(HomeThatTakesNothing, ADocumentOfManyPagesIsNotSavedAndSaysWhy) {
  SetFault(FailWrites);
  Upload("book", 70 * 16);
  RunUntil([&] { return !Info("book").save_error.ok(); });
  EXPECT_TRUE(absl::IsResourceExhausted(Info("book").save_error)) << Info("book").save_error;
  EXPECT_THAT(Info("book").save_error.message(), testing::HasSubstr("no space left"));
  EXPECT_EQ(Ask("book"), 70 * 16);
}

}  // namespace
}  // namespace folio::test
