#include "engine/runtime/document_directory.h"

#include "gtest/gtest.h"

namespace folio {
namespace {

using State = DocumentState;

class DocumentDirectoryTest : public testing::Test {
 protected:
  DocumentHandle Create(const std::string& id) {
    return directory_.Create(id, {{"full", {}}, {}}, nullptr)->handle;
  }
  State StateOf(const DocumentHandle& handle) { return directory_.Get(handle)->state; }

  DocumentDirectory directory_{{.max_documents = 3, .max_tokens = 100}};
};

TEST_F(DocumentDirectoryTest, ADocumentIsReadyOnceEveryTokenOfAFinishedUploadIsPrefilled) {
  const DocumentHandle document = Create("a");
  EXPECT_TRUE(directory_.AddTokens(document, 30).ok());
  EXPECT_EQ(directory_.SetProgress(document, {.prefilled_tokens = 30}), State::kUploading);
  EXPECT_TRUE(directory_.AddTokens(document, 10).ok());
  EXPECT_TRUE(directory_.FinishUpload(document).ok());
  EXPECT_EQ(StateOf(document), State::kPrefilling);
  EXPECT_EQ(directory_.SetProgress(document, {.prefilled_tokens = 39}), State::kPrefilling);
  EXPECT_EQ(directory_.SetProgress(document, {40, 1000, 200}), State::kReady);
  EXPECT_EQ(directory_.Get(document)->kv_bytes, 1000);
  EXPECT_EQ(directory_.Get(document)->summary_bytes, 200);
  // Another strategy's cache comes and goes.
  EXPECT_EQ(directory_.SetProgress(document, {40, 1500, 200}), State::kReady);
}

TEST_F(DocumentDirectoryTest, ProgressOfADocumentThatIsGoneOrHasFailedIsNobodys) {
  const DocumentHandle deleted = Create("a");
  EXPECT_TRUE(directory_.Remove(deleted).ok());
  const DocumentHandle next = Create("a");
  EXPECT_EQ(directory_.SetProgress(deleted, {.prefilled_tokens = 7}), std::nullopt);
  EXPECT_EQ(directory_.Get(next)->prefilled_tokens, 0);
  EXPECT_TRUE(directory_.Fail(next, absl::AbortedError("why")).ok());
  EXPECT_EQ(directory_.SetProgress(next, {.prefilled_tokens = 7}), std::nullopt);
  EXPECT_EQ(directory_.Get(next)->prefilled_tokens, 0);
}

TEST_F(DocumentDirectoryTest, AFailureKeepsItsFirstReasonAndFreesEverything) {
  const DocumentHandle document = Create("a");
  EXPECT_TRUE(directory_.AddTokens(document, 5).ok());
  directory_.SetProgress(document, {5, 1000, 200});
  EXPECT_TRUE(directory_.Fail(document, absl::AbortedError("first")).ok());
  EXPECT_EQ(directory_.Fail(document, absl::AbortedError("second")).code(),
            absl::StatusCode::kFailedPrecondition);
  const DocumentInfo failed = *directory_.Get(document);
  EXPECT_EQ(failed.error, absl::AbortedError("first"));
  EXPECT_EQ(failed.kv_bytes + failed.summary_bytes + failed.prefilled_tokens, 0);
}

TEST_F(DocumentDirectoryTest, IncarnationsGrowUnderEveryId) {
  uint64_t last = 0;
  for (const char* id : {"a", "b", "a", "a", "b"}) {
    const auto old = directory_.Find(id);
    EXPECT_TRUE(!old.has_value() || directory_.Remove(old->handle).ok());
    const DocumentHandle document = Create(id);
    EXPECT_GT(document.incarnation, last);
    last = document.incarnation;
  }
}

TEST_F(DocumentDirectoryTest, LimitsAreKept) {
  const DocumentHandle a = Create("a");
  EXPECT_TRUE(directory_.AddTokens(a, 100).ok());
  EXPECT_EQ(directory_.AddTokens(a, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(directory_.Get(a)->known_tokens, 100);
  Create("b");
  Create("c");
  EXPECT_EQ(directory_.Create("d", {}, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(directory_.Create("a", {}, nullptr).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(DocumentDirectoryTest, StatesAreCounted) {
  const DocumentHandle a = Create("a");
  const DocumentHandle b = Create("b");
  Create("c");
  EXPECT_TRUE(directory_.AddTokens(a, 1).ok());
  EXPECT_TRUE(directory_.FinishUpload(a).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{2, 1, 0, 0}));
  directory_.SetProgress(a, {.prefilled_tokens = 1});
  EXPECT_TRUE(directory_.Fail(b, absl::AbortedError("x")).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{1, 0, 1, 1}));
  EXPECT_TRUE(directory_.Remove(a).ok());
  EXPECT_TRUE(directory_.Remove(b).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{1, 0, 0, 0}));
}

}  // namespace
}  // namespace folio
