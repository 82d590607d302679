#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "folio/v1/inference.grpc.pb.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

class Score : public ::testing::Test {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ScoreRequest, v1::ScoreEvent>;

  // Sends the requests, closes, and reads everything.
  grpc::Status Run(const std::vector<v1::ScoreRequest>& requests) {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = stub_->Score(&context);
    for (const v1::ScoreRequest& request : requests) {
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    v1::ScoreEvent event;
    while (stream->Read(&event)) events_.push_back(event);
    return stream->Finish();
  }
  static v1::ScoreRequest Header(uint32_t bucket_tokens = 0, bool per_token = false) {
    v1::ScoreRequest request;
    request.mutable_header()->set_bucket_tokens(bucket_tokens);
    request.mutable_header()->set_per_token(per_token);
    return request;
  }
  static v1::ScoreRequest Ids(int count) {
    v1::ScoreRequest request;
    for (int i = 0; i < count; ++i) request.mutable_token_ids()->add_ids(3);
    return request;
  }
  static v1::ScoreRequest Text(const std::string& text) {
    v1::ScoreRequest request;
    request.set_text(text);
    return request;
  }

  TestServer server_;
  std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(server_.channel());
  std::vector<v1::ScoreEvent> events_;
};

TEST_F(Score, SumsByBucket) {
  const grpc::Status status = Run({Header(100), Ids(150), Ids(100)});
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(events_.size(), 5u);
  EXPECT_TRUE(events_[0].accepted().strategy().has_full());
  const uint64_t tokens[] = {99, 100, 50};  // the first token has no score
  for (int i = 0; i < 3; ++i) {
    const v1::ScoreBucket& bucket = events_[i + 1].bucket();
    EXPECT_EQ(bucket.begin(), 100u * i);
    EXPECT_EQ(bucket.end(), 100u * (i + 1));
    EXPECT_EQ(bucket.num_tokens(), tokens[i]);
    EXPECT_DOUBLE_EQ(bucket.log_likelihood(), -static_cast<double>(tokens[i]));
  }
  EXPECT_EQ(events_[4].completed().num_tokens(), 250u);
  EXPECT_DOUBLE_EQ(events_[4].completed().log_likelihood(), -249);
}

TEST_F(Score, BucketsDoubleByDefault) {
  ASSERT_TRUE(Run({Header(), Ids(1100)}).ok());
  std::vector<uint64_t> ends;
  for (const v1::ScoreEvent& event : events_) {
    if (event.has_bucket()) ends.push_back(event.bucket().end());
  }
  EXPECT_EQ(ends, (std::vector<uint64_t>{256, 512, 1024, 2048}));
}

TEST_F(Score, SendsEveryTokenIfAskedFor) {
  ASSERT_TRUE(Run({Header(0, true), Ids(10), Ids(5)}).ok());
  uint64_t next = 1;
  for (const v1::ScoreEvent& event : events_) {
    if (!event.has_tokens()) continue;
    EXPECT_EQ(event.tokens().first_position(), next);
    next += event.tokens().logprobs_size();
  }
  EXPECT_EQ(next, 15u);
}

TEST_F(Score, TextBeginsWithBosAndMayBeCutInsideACharacter) {
  ASSERT_TRUE(Run({Header(), Text("h\xC3"), Text("\xA9llo")}).ok());
  const auto expected = FakeTokenizer::TokensOf("h\xC3\xA9llo");
  EXPECT_EQ(events_.back().completed().num_tokens(), expected.size() + 1);
}

TEST_F(Score, BadInputIsRefused) {
  EXPECT_EQ(Run({Ids(3)}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run({Header(), Header()}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run({Header(), Text("a\xFF")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run({Header(), Text("a\xC3")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run({Header(), Ids(3), Text("a")}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run({Header(), v1::ScoreRequest()}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ScoreRequest bad_id;
  bad_id.mutable_token_ids()->add_ids(1 << 30);
  EXPECT_EQ(Run({Header(), bad_id}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::ScoreRequest unknown;
  unknown.mutable_header()->mutable_strategy()->mutable_long_heads();
  EXPECT_EQ(Run({unknown}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Score, AnEmptyTextHasNoScore) {
  ASSERT_TRUE(Run({Header()}).ok());
  EXPECT_EQ(events_.back().completed().num_tokens(), 0u);
}

TEST(ScoreBackpressure, WhoReadsNothingIsReadNoMoreAndEnds) {
  server::ServerOptions options;
  options.requests.max_stream_buffer_bytes = 4 << 10;
  TestServer server(options);
  const auto stub = v1::Inference::NewStub(server.TcpChannel());
  grpc::ClientContext context;
  const auto stream = stub->Score(&context);
  v1::ScoreRequest request;
  request.mutable_header()->set_per_token(true);
  constexpr int kMany = 5000;  // 80 MB of scores
  std::atomic<int> num_written{0};
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    while (num_written < kMany && stream->Write(request)) {
      if (++num_written > 1) continue;
      for (int i = 0; i < 4096; ++i) request.mutable_token_ids()->add_ids(3);
    }
    ended = true;
  });
  while (!ended) {
    server.clock().Advance(std::chrono::seconds(1));
    std::this_thread::yield();
  }
  writer.join();
  EXPECT_LT(num_written, kMany);
  v1::ScoreEvent event;
  while (stream->Read(&event)) {
  }
  // ABORTED, or CANCELLED if it did not read that either.
  EXPECT_FALSE(stream->Finish().ok());
}

}  // namespace
}  // namespace folio::testing
