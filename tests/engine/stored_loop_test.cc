// Stored documents on the engine thread: how they come back into memory, and when.
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

}  // namespace
}  // namespace folio::test
