// Whether it is worth waiting for memory.
#include "engine/runtime/shortage.h"

#include "engine/base/short_for_now.h"
#include "gmock/gmock.h"
#include "tests/engine/engine_loop_fixture.h"

namespace folio::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Shortage, WhatDocumentsKeepIsNotWaitedFor) {
  const absl::Status status = NoRoomInCache({"the request", 41, 60, 100}, Model());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsShortForNow(status));
  EXPECT_THAT(status.message(), HasSubstr("the request needs 41 bytes of KV cache, documents keep "
                                          "60 of 100: delete documents"));
  EXPECT_THAT(status.message(), HasSubstr("--kv-bytes"));
}

TEST(Shortage, WhatOthersUseIsWaitedFor) {
  const absl::Status status = NoRoomInCache({"the request", 40, 60, 100}, Model());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(IsShortForNow(status));
  EXPECT_THAT(status.message(), HasSubstr("try again"));
  EXPECT_THAT(status.message(), Not(HasSubstr("delete")));
}

// The pool of these tests has 100 pages of 16 tokens.

TEST_F(EngineLoopTest, ADocumentBesideReadyDocumentsSaysWhatToDelete) {
  Upload("kept", 60 * 16);
  auto sink = std::make_shared<Recorder>();
  Append(Open("late", sink), 60 * 16);
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsShortForNow(sink->status()));
  EXPECT_THAT(sink->status().message(), HasSubstr("delete documents"));
}

TEST_F(EngineLoopTest, AScoredStreamBesideDocumentsSaysWhatToDelete) {
  Upload("kept", 60 * 16);
  auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), stream);
  loop_.scorings().Append(1, std::vector<int32_t>(60 * 16, 4));
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsShortForNow(stream->status())) << stream->status();
}

TEST_F(EngineLoopTest, ARequestBesideAScoredStreamIsWorthASecondTry) {
  auto stream = std::make_shared<Recorder>();
  loop_.scorings().Open(1, Attention("full"), stream);
  loop_.scorings().Append(1, std::vector<int32_t>(60 * 16, 4));
  auto request = Submit(2, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_TRUE(IsShortForNow(request->status())) << request->status();
  loop_.scorings().Finish(1);
  auto again = Submit(3, Spec(60 * 16, 2));
  RunUntilIdle();
  EXPECT_TRUE(again->completed().has_value());
}

// A question under another strategy needs the document a second time.
TEST_F(EngineLoopTest, ARequestWhoseRenditionTakesTheRestIsNotWorthASecondTry) {
  const DocumentHandle document = Upload("d", 40 * 16);
  GenerateSpec spec = Spec(30 * 16, 2, document);
  spec.attention = Attention("long_heads");
  auto request = Submit(1, spec);
  RunUntilIdle();
  EXPECT_EQ(request->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsShortForNow(request->status())) << request->status();
}

TEST_F(EngineLoopTest, NoRoomOnTheDeviceIsWorthASecondTry) {
  runner_.has_no_room = [](const Sequence& sequence) { return sequence.id == 1; };
  auto failed = Submit(1, Spec(10, 20));
  RunUntilIdle();
  EXPECT_TRUE(IsShortForNow(failed->status())) << failed->status();
}

}  // namespace
}  // namespace folio::test
