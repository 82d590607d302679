// The listener in front of gRPC, with clients that are none of gRPC's.
#include "server/edge/edge.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kSettings(std::string("\0\0\0\4\0\0\0\0\0", 9));

// A connection that sends what a test wants.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  // Says that it speaks HTTP/2, and waits for the answer.
  void Begin() {
    EXPECT_TRUE(Send(kPreface + kSettings));
    char byte = 0;
    EXPECT_EQ(::recv(fd_.get(), &byte, 1, 0), 1);
  }
  bool Send(const std::string& bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What comes next; empty: the server has closed.
  std::string Read() {
    char buffer[4096];
    const ssize_t count = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
    return {buffer, static_cast<size_t>(std::max<ssize_t>(count, 0))};
  }
  // Waits until the server has said that no more comes; reads nothing.
  void AwaitEnd() {
    pollfd wanted{fd_.get(), POLLRDHUP, 0};
    EXPECT_EQ(::poll(&wanted, 1, -1), 1);
  }
  // What comes until the server closes.
  std::string ReadToEnd() {
    std::string all;
    for (std::string more = Read(); !more.empty(); more = Read()) all += more;
    return all;
  }

 private:
  server::Fd fd_;
};

bool Serves(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  return v1::Control::NewStub(channel)->GetServerInfo(&context, {}, &info).ok();
}

server::ServerOptions Limited(const server::EdgeLimits& limits) {
  server::ServerOptions options;
  options.edge = limits;
  return options;
}

TEST(Edge, NewConnectionsTakeThePlaceOfIdleOnes) {
  TestServer server(Limited({.max_connections = 4}));
  std::list<RawClient> idle;
  for (int n = 0; n < 20; ++n) idle.emplace_back(server.runner().grpc_port()).Begin();
  for (int n = 0; n < 16; ++n) {
    idle.front().ReadToEnd();  // was closed
    idle.pop_front();
  }
  EXPECT_TRUE(Serves(server.TcpChannel()));
}

TEST(Edge, ConnectionsWithCallsAreNotClosedForNewOnes) {
  TestServer server(Limited({.max_connections = 2}));
  const auto channel = server.TcpChannel();
  Generate first(channel, Ask("hello"));
  EXPECT_TRUE(first.Next().has_accepted());
  const auto other = server.TcpChannel();
  Generate second(other, Ask("hello"));
  EXPECT_TRUE(second.Next().has_accepted());
  RawClient refused(server.runner().grpc_port());
  EXPECT_EQ(refused.ReadToEnd(), "");
  server.engine().Emit(Completed(1), 1);
  server.engine().Emit(Completed(1), 2);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_TRUE(Serves(server.TcpChannel()));
}

TEST(Edge, OneAddressCannotTakeAllPlaces) {
  TestServer server(Limited({.max_connections = 100, .max_connections_per_peer = 1}));
  const auto channel = server.TcpChannel();
  Generate busy(channel, Ask("hello"));
  EXPECT_TRUE(busy.Next().has_accepted());
  RawClient refused(server.runner().grpc_port());
  EXPECT_EQ(refused.ReadToEnd(), "");
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(busy.Finish().ok());
}

TEST(Edge, WhoSaysNothingIsNotHandedOver) {
  std::atomic<int> num_handed_over{0};
  const auto edge =
      server::Edge::Start("127.0.0.1:0", {}, [] { return SteadyTime(); }, {.handover = [&](int fd) {
                            ++num_handed_over;
                            ::close(fd);
                          }});
  ASSERT_TRUE(edge.ok()) << edge.status();
  std::list<RawClient> silent;
  for (int n = 0; n < 20; ++n) silent.emplace_back((*edge)->port());
  silent.pop_back();  // leaves without a word
  RawClient speaks((*edge)->port());
  EXPECT_TRUE(speaks.Send(kPreface));
  EXPECT_EQ(speaks.ReadToEnd(), "");  // as what it was handed over to has closed it
  EXPECT_EQ(num_handed_over, 1);
}

TEST(Edge, WhoSaysNothingIsClosed) {
  TestServer server;
  RawClient silent(server.runner().grpc_port());
  RawClient half(server.runner().grpc_port());
  EXPECT_TRUE(half.Send(kPreface.substr(0, 10)));
  const auto channel = server.TcpChannel();
  EXPECT_TRUE(Serves(channel));  // both were accepted before
  server.clock().Advance(std::chrono::seconds(21));
  silent.ReadToEnd();
  half.ReadToEnd();
  EXPECT_TRUE(Serves(channel));
}

TEST(Edge, AbuseClosesItsConnectionAndNoOther) {
  TestServer server;
  const auto channel = server.TcpChannel();
  Generate good(channel, Ask("hello"));
  EXPECT_TRUE(good.Next().has_accepted());
  RawClient bad(server.runner().grpc_port());
  bad.Begin();
  EXPECT_TRUE(bad.Send(std::string("\0\0\1\1\0\0\0\0\1\x82", 10)));  // HEADERS that do not end
  std::string continuation("\0\x40\0\x9\0\0\0\0\1", 9);
  continuation.append(16384, '\0');
  while (bad.Send(continuation)) {
  }
  bad.ReadToEnd();
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(good.Finish().ok());
}

// Source: RFC 9113, section 6.8.
TEST(Edge, ADrainAsksClientsToLeaveAndLetsTheirCallsEnd) {
  TestServer server;
  const auto channel = server.TcpChannel();
  Generate running(channel, Ask("hello"));
  EXPECT_TRUE(running.Next().has_accepted());
  RawClient idle(server.runner().grpc_port());
  idle.Begin();
  std::thread drain([&] { server.runner().Drain([] { return false; }); });
  // GOAWAY with the highest stream there can be and NO_ERROR. gRPC sends its own when the last call
  // has ended.
  std::string received;
  while (received.find(std::string("\7\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0", 14)) == received.npos) {
    const std::string more = idle.Read();
    ASSERT_FALSE(more.empty());
    received += more;
  }
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(running.Finish().ok());
  drain.join();
}

TEST(Edge, BytesPassUnchangedInBothDirections) {
  TestServer server;
  server.engine().AnswerAtOnce();
  std::string text;
  for (int n = 0; text.size() < 3'000'000; ++n) text += std::to_string(n) + " ";
  text += "end";
  Upload upload(server.TcpChannel());
  upload.Header("book");
  for (size_t at = 0; at < text.size(); at += 700'000) upload.Chunk(at, text.substr(at, 700'000));
  upload.FinishUpload(text.size());
  EXPECT_TRUE(upload.Finish().ok());
  const std::vector<int32_t> tokens = server.engine().DocumentTokens("book");
  EXPECT_EQ(*server.engine().tokenizer().Decode(tokens), text);
  Generate answer(server.TcpChannel(), AskDocument("book", "?"));
  EXPECT_TRUE(answer.Next().has_accepted());
}

// A connection whose end behind the edge is the test's.
class EdgeOfOne : public ::testing::Test {
 protected:
  void SetUp() override {
    auto edge = server::Edge::Start("127.0.0.1:0", {},
                                    [this] {
                                      ++num_looks_;
                                      return SteadyTime(std::chrono::seconds(seconds_));
                                    },
                                    {.handover = [this](int fd) { behind_.set_value(fd); },
                                     .on_sweep =
                                         [this] {
                                           seconds_ += seconds_a_sweep_;
                                           ++num_sweeps_;
                                         }});
    ASSERT_TRUE(edge.ok()) << edge.status();
    edge_ = *std::move(edge);
    client_.emplace(edge_->port());
    EXPECT_TRUE(client_->Send(kPreface + kSettings));
  }
  // Answers with so many bytes, and closes, whatever the client has sent.
  void AnswerAndClose(size_t size) {
    const server::Fd fd(behind_.get_future().get());
    const std::string answer(size, 'x');
    for (size_t sent = 0; sent < size;) {
      pollfd wanted{fd.get(), POLLOUT, 0};
      ::poll(&wanted, 1, -1);
      const ssize_t count = ::send(fd.get(), answer.data() + sent, size - sent, MSG_NOSIGNAL);
      if (count > 0) sent += static_cast<size_t>(count);
    }
  }
  void AwaitNoConnections() {
    while (edge_->num_connections() > 0) std::this_thread::yield();
  }
  void AwaitSweeps(int count) {
    const int last = num_sweeps_ + count;
    while (num_sweeps_ < last) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // It looks at the clock whenever a socket has something for it, and in a sweep.
  void ExpectThatItWaits() {
    AwaitSweeps(2);  // has seen what was done before
    const int before = num_looks_;
    AwaitSweeps(2);
    EXPECT_LT(num_looks_ - before, 10);
  }

  const std::string kWindowUpdate{"\0\0\4\x8\0\0\0\0\0\0\0\0\1", 13};
  std::atomic<int> seconds_{0};
  std::atomic<int> seconds_a_sweep_{0};
  std::atomic<int> num_looks_{0};
  std::atomic<int> num_sweeps_{0};
  std::promise<int> behind_;
  std::unique_ptr<server::Edge> edge_;
  std::optional<RawClient> client_;
};

// A client whose next bytes are refused gives up what it has not read yet: that is how gRPC's do.
TEST_F(EdgeOfOne, ListensToAClientUntilThatHasReadTheEnd) {
  AnswerAndClose(1000);
  client_->AwaitEnd();
  for (int n = 0; n < 10; ++n) EXPECT_TRUE(client_->Send(kWindowUpdate)) << n;
  EXPECT_EQ(client_->ReadToEnd().size(), 1000);
  client_.reset();
  AwaitNoConnections();
}

TEST_F(EdgeOfOne, WhatGrpcSaidLastReachesAClientThatReadsSlowlyAndSends) {
  constexpr size_t kSize = 8 << 20;  // more than sockets hold
  std::thread grpc([&] { AnswerAndClose(kSize); });
  size_t received = 0;
  size_t next_send = 0;
  for (std::string more = client_->Read(); !more.empty(); more = client_->Read()) {
    received += more.size();
    if (received < next_send) continue;
    EXPECT_TRUE(client_->Send(kWindowUpdate));
    next_send += 100'000;
  }
  EXPECT_EQ(received, kSize);
  grpc.join();
}

TEST_F(EdgeOfOne, AClientThatDoesNotCloseIsClosed) {
  AnswerAndClose(1000);
  client_->AwaitEnd();
  ExpectThatItWaits();
  EXPECT_EQ(edge_->num_connections(), 1);
  seconds_ = 3;
  AwaitNoConnections();
}

TEST_F(EdgeOfOne, AClientThatReadsNothingMoreIsClosed) {
  const std::string much(1 << 20, 'x');
  server::Fd fd(behind_.get_future().get());
  pollfd wanted{fd.get(), POLLOUT, 0};
  while (::poll(&wanted, 1, /*timeout=*/200) == 1) {  // until nobody takes more
    ::send(fd.get(), much.data(), much.size(), MSG_NOSIGNAL);
  }
  fd.Close();
  ExpectThatItWaits();
  seconds_a_sweep_ = 70;  // from whenever it sees the end
  AwaitNoConnections();
}

TEST(Edge, ShortDescriptorsLowerBothLimitsAlike) {
  const server::EdgeLimits wanted = {.max_connections = 1 << 29,
                                     .max_connections_per_peer = 1 << 28};
  const auto edge = server::Edge::Start("127.0.0.1:0", wanted, [] { return SteadyTime(); },
                                        {.handover = [](int) {}});
  ASSERT_TRUE(edge.ok()) << edge.status();
  const server::EdgeLimits& limits = (*edge)->limits();
  EXPECT_LT(limits.max_connections, 1 << 29);
  EXPECT_GE(limits.max_connections, 1);
  EXPECT_LE(limits.max_connections_per_peer, limits.max_connections / 2);
}

TEST(Edge, AddressesThatCannotBeListenedOnAreRefused) {
  const auto start = [](const std::string& listen) {
    return server::Edge::Start(listen, {}, [] { return SteadyTime(); }, {.handover = [](int) {}})
        .status();
  };
  for (const char* bad : {"127.0.0.1:65536", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", ":-1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(start(bad))) << bad;
  }
  EXPECT_TRUE(absl::IsUnavailable(start("203.0.113.1:0")));
  EXPECT_TRUE(absl::IsInvalidArgument(start("no such host:0")));
  for (const char* good : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0"}) {
    EXPECT_TRUE(start(good).ok()) << good;
  }
}

// By this the rest of the server knows that it goes on.
TEST(Edge, ItsThreadCallsBackAgainAndAgain) {
  std::promise<void> twice;
  int num_calls = 0;
  const auto edge =
      server::Edge::Start("127.0.0.1:0", {}, [] { return std::chrono::steady_clock::now(); },
                          {.handover = [](int) {},
                           .on_sweep =
                               [&] {
                                 if (++num_calls == 2) twice.set_value();
                               }});
  ASSERT_TRUE(edge.ok()) << edge.status();
  twice.get_future().wait();
}

}  // namespace
}  // namespace folio::testing
