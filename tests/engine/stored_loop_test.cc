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

}  // namespace
}  // namespace folio::test
