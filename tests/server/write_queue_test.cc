#include "server/write_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "folio/v1/text.pb.h"

namespace folio::server {
namespace {

using Message = v1::DetokenizeResponse;

Message Text(const std::string& text) {
  Message message;
  message.set_text(text);
  return message;
}

// Texts fold into one another while they are short.
bool Merge(const Message& from, Message* into) {
  if (into->text().size() > 5) return false;
  into->mutable_text()->append(from.text());
  return true;
}

// Records what the queue asks the reactor for.
struct Recorder {
  std::vector<std::string> writes;
  std::vector<grpc::Status> ends;
  WriteQueue<Message> queue{{[this](const Message* m) { writes.push_back(m->text()); },
                             [this](grpc::Status s) { ends.push_back(std::move(s)); }, Merge}};
};

TEST(WriteQueue, OneWriteIsInFlightAndTheEndComesLast) {
  Recorder r;
  EXPECT_TRUE(r.queue.Push(Text("abcdef")));
  EXPECT_TRUE(r.queue.Push(Text("ghijkl")));
  r.queue.Finish(grpc::Status::OK);
  EXPECT_EQ(r.writes, std::vector<std::string>{"abcdef"});
  r.queue.OnWriteDone(true);
  EXPECT_EQ(r.writes, (std::vector<std::string>{"abcdef", "ghijkl"}));
  EXPECT_TRUE(r.ends.empty());
  r.queue.OnWriteDone(true);
  ASSERT_EQ(r.ends.size(), 1u);
  EXPECT_TRUE(r.ends[0].ok());
}

TEST(WriteQueue, WaitingMessagesFoldButTheOneInFlightStays) {
  Recorder r;
  EXPECT_TRUE(r.queue.Push(Text("a")));
  EXPECT_TRUE(r.queue.Push(Text("b")));
  EXPECT_FALSE(r.queue.Push(Text("c")));
  EXPECT_GT(r.queue.waiting_bytes(), 0u);
  r.queue.OnWriteDone(true);
  EXPECT_EQ(r.writes, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r.queue.waiting_bytes(), 0u);
}

TEST(WriteQueue, OnlyTheFirstEndCounts) {
  Recorder r;
  r.queue.Finish(grpc::Status::OK);
  r.queue.Finish(grpc::Status::CANCELLED);
  r.queue.Abort(grpc::Status::CANCELLED);
  EXPECT_FALSE(r.queue.Push(Text("late")));
  ASSERT_EQ(r.ends.size(), 1u);
  EXPECT_TRUE(r.ends[0].ok());
  EXPECT_EQ(r.queue.final_code(), grpc::StatusCode::OK);
}

TEST(WriteQueue, AbortDropsWhatWaits) {
  Recorder r;
  r.queue.Push(Text("abcdef"));
  r.queue.Push(Text("ghijkl"));
  r.queue.Abort(grpc::Status(grpc::StatusCode::ABORTED, "slow"));
  EXPECT_EQ(r.queue.waiting_bytes(), 0u);
  EXPECT_TRUE(r.ends.empty());
  r.queue.OnWriteDone(true);
  EXPECT_EQ(r.writes, std::vector<std::string>{"abcdef"});
  ASSERT_EQ(r.ends.size(), 1u);
  EXPECT_EQ(r.ends[0].error_code(), grpc::StatusCode::ABORTED);
}

TEST(WriteQueue, AFailedWriteEndsEverything) {
  Recorder r;
  r.queue.Push(Text("abcdef"));
  r.queue.Push(Text("ghijkl"));
  r.queue.OnWriteDone(false);
  EXPECT_EQ(r.writes.size(), 1u);
  ASSERT_EQ(r.ends.size(), 1u);
  EXPECT_EQ(r.ends[0].error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(r.queue.waiting_bytes(), 0u);
}

TEST(WriteQueue, OtherOperationsStartOnlyWhileItIsOpen) {
  Recorder r;
  int started = 0;
  r.queue.IfOpen([&] { ++started; });
  r.queue.Finish(grpc::Status::OK);
  r.queue.IfOpen([&] { ++started; });
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace folio::server
