#include <gtest/gtest.h>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

// In process, a write is done when the client has read it: a client that does not read holds up the
// first one.

TEST(SlowReader, DeltasAreFoldedAndNothingIsLost) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  std::string sent;
  for (int i = 0; i < 1000; ++i) {
    const std::string word = std::to_string(i) + " ";
    sent += word;
    server.engine().Emit(Delta(word));
  }
  server.engine().Emit(Completed(1000));
  std::string received;
  int events = 0;
  int tokens = 0;
  for (;;) {
    const v1::GenerateEvent event = call.Next();
    if (event.event_case() == v1::GenerateEvent::EVENT_NOT_SET) break;
    received += event.delta().text();
    tokens += event.delta().token_ids_size();
    ++events;
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(tokens, 1000);
  EXPECT_LE(events, 1002);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(SlowReader, AnEchoIsFoldedNeitherWithAnotherNorWithTheAnswer) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  constexpr int kEchoes = 50;
  for (int i = 0; i < kEchoes; ++i) server.engine().Emit(PromptEvent{i, "a", {5}, {}, {}});
  for (int i = 0; i < kEchoes; ++i) server.engine().Emit(Delta("b"));
  server.engine().Emit(Completed(kEchoes));
  EXPECT_TRUE(call.Next().has_accepted());
  for (int i = 0; i < kEchoes; ++i) {
    const v1::GenerateEvent event = call.Next();
    EXPECT_TRUE(event.delta().echo());
    EXPECT_EQ(event.delta().text(), "a");
  }
  std::string answer;
  while (answer.size() < kEchoes) {
    const v1::GenerateEvent event = call.Next();
    ASSERT_TRUE(event.has_delta());
    EXPECT_FALSE(event.delta().echo());
    answer += event.delta().text();
  }
  EXPECT_TRUE(call.Finish().ok());
}

TEST(SlowReader, GivesUpItsPlaceUntilItReads) {
  server::ServerOptions options;
  options.requests.max_stream_buffer_bytes = 10000;
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest(1);
  Generate other(server.channel(), Ask("hello"));
  server.engine().WaitForRequest(2);
  std::string sent;
  // More than the transport takes on its own.
  for (int i = 0; i < 200; ++i) {
    sent += std::string(1000, static_cast<char>('a' + i % 26));
    server.engine().Emit(Delta(std::string(1000, static_cast<char>('a' + i % 26))), 1);
  }
  server.engine().WaitForHeldBack(true);
  EXPECT_EQ(server.engine().num_running(), 2);
  server.engine().Emit(Completed(1), 2);  // the other stream has not noticed
  EXPECT_TRUE(other.Finish().ok());
  std::string received;
  while (received.size() < sent.size()) received += call.Next().delta().text();
  EXPECT_EQ(received, sent);
  server.engine().WaitForHeldBack(false);
  server.engine().Emit(Completed(200), 1);
  EXPECT_TRUE(call.Finish().ok());
}

TEST(SlowReader, AWriteThatWaitsForSecondsHoldsItBackToo) {
  server::ServerOptions options;
  options.requests.slow_reader_seconds = 1 << 30;
  TestServer server(options);
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  for (int i = 0; i < 3; ++i) server.engine().Emit(Delta("a"));
  // Until the server has noticed; it first needs a write to have begun.
  while (!server.engine().IsHeldBack()) {
    server.clock().Advance(std::chrono::seconds(3));
    std::this_thread::yield();
  }
  server.engine().Emit(Completed(3));
  EXPECT_TRUE(call.Finish().ok());
}

TEST(SlowReader, AWriteThatIsNeverTakenEndsTheStream) {
  TestServer server;
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().Emit(Delta("a"));
  server.engine().Emit(Delta("b"));
  server.engine().Emit(Delta("c"));
  // Until the server has noticed; it first needs the writes to have begun.
  while (server.engine().num_running() > 0) {
    server.clock().Advance(std::chrono::seconds(61));
    std::this_thread::yield();
  }
  EXPECT_EQ(server.engine().WaitForCancel().code(), absl::StatusCode::kAborted);
  // It is still not read: ten seconds later the call is cancelled, and the drain need not wait for
  // it.
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    server.runner().Drain([] { return false; });
    drained = true;
  });
  while (!drained) {
    server.clock().Advance(std::chrono::seconds(11));
    std::this_thread::yield();
  }
  drain.join();
  EXPECT_FALSE(call.Finish().ok());
}

}  // namespace
}  // namespace folio::testing
