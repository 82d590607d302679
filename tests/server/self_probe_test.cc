#include "server/self_probe.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <thread>

#include "server/edge/listen.h"
#include "server/heartbeat.h"
#include "tests/server/test_server.h"

namespace folio::server {
namespace {

constexpr SelfProbe::Looks kLooks{.between = 3, .patience = 5};

SelfProbe::Port PortOf(const Listeners& listeners) {
  return {"the test's port", listeners.address, Http1Question()};
}

TEST(Heartbeat, StopsOnceAfterSoManyLooksWithoutABeat) {
  Heartbeat heartbeat(3);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(heartbeat.Stopped()) << "it has not begun";
  EXPECT_EQ(heartbeat.last(), std::nullopt);
  const SteadyTime time = std::chrono::steady_clock::now();
  heartbeat.Beat(time);
  EXPECT_EQ(heartbeat.last(), time);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(heartbeat.Stopped());
  heartbeat.Beat(time);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(heartbeat.Stopped());
  EXPECT_TRUE(heartbeat.Stopped());
  EXPECT_FALSE(heartbeat.Stopped());
}

// Its kernel takes connections, and nobody else does.
TEST(SelfProbe, NoticesAPortThatAnswersNobody) {
  const auto listeners = ListenOn("127.0.0.1:0", "--test");
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  SelfProbe probe({PortOf(*listeners)}, kLooks);
  for (int look = 1; look < kLooks.between + kLooks.patience; ++look) {
    EXPECT_EQ(probe.Deaf(), std::nullopt) << look;
  }
  EXPECT_EQ(probe.Deaf(), "the test's port answers nobody any more");
}

TEST(SelfProbe, AsksAgainAfterEachAnswer) {
  const auto listeners = ListenOn("127.0.0.1:0", "--test");
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  std::atomic<bool> answered_all{false};
  std::thread server([&] {
    const std::string expected = Http1Question();
    for (int n = 0; n < 5; ++n) {
      Fd client;
      while (!client.valid()) {
        client = Fd(::accept4(listeners->sockets[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
        std::this_thread::yield();
      }
      std::string question(expected.size(), ' ');
      EXPECT_EQ(::recv(client.get(), question.data(), question.size(), MSG_WAITALL),
                static_cast<ssize_t>(question.size()));
      EXPECT_EQ(question, expected);
      // An answer, or none but the end of the connection.
      if (n % 2 == 0) {
        EXPECT_EQ(::send(client.get(), "x", 1, MSG_NOSIGNAL), 1);
      }
    }
    answered_all = true;
  });
  SelfProbe probe({PortOf(*listeners)}, {.between = 1, .patience = 1 << 30});
  while (!answered_all) {
    EXPECT_EQ(probe.Deaf(), std::nullopt);
    std::this_thread::yield();
  }
  server.join();
}

TEST(SelfProbe, AConnectionThatIsNotMadeSaysNothing) {
  const auto listeners = ListenOn("127.0.0.1:0", "--test");
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  SelfProbe::Port port = PortOf(*listeners);
  port.has_place = [] { return false; };
  SelfProbe without_place({port}, kLooks);
  SelfProbe without_descriptors({PortOf(*listeners)}, kLooks);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int look = 0; look < 100; ++look) {
    EXPECT_EQ(without_place.Deaf(), std::nullopt);
    EXPECT_EQ(without_descriptors.Deaf(), std::nullopt);
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Each port with what it is asked: the looks come as fast as they can, so answers take many.
TEST(SelfProbe, TheServersPortsAnswer) {
  testing::TestServer server(testing::WithMetrics());
  const auto address = [](int port) {
    sockaddr_storage storage{};
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(static_cast<uint16_t>(port));
    return storage;
  };
  int num_asked = 0;
  const auto count = [&num_asked] { return ++num_asked > 0; };
  const std::pair<int, std::string> ports[] = {{server.runner().grpc_port(), Http2Question()},
                                               {server.runner().metrics_port(), Http1Question()}};
  for (const auto& [port, question] : ports) {
    num_asked = 0;
    SelfProbe probe({{"a port", address(port), question, count}},
                    {.between = 1, .patience = 1 << 30});
    while (num_asked < 4) EXPECT_EQ(probe.Deaf(), std::nullopt);
  }
}

}  // namespace
}  // namespace folio::server
