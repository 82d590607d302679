#include "server/metrics_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "server/edge/fd.h"

namespace folio::server {
namespace {

class MetricsListenerTest : public ::testing::Test {
 protected:
  MetricsListenerTest() {
    prometheus::BuildCounter().Name("folio_test").Register(*registry_).Add({}).Increment(7);
    Restart({});
  }
  void Restart(const MetricsLimits& limits) {
    listener_ = *MetricsListener::Start("127.0.0.1:0", limits, {}, {registry_});
  }

  // Sends the bytes from an address of its own.
  Fd Send(const std::string& bytes, const char* from = "127.0.0.1") const {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return socket;
  }
  static std::string Receive(const Fd& socket) {
    std::string text;
    char part[4096];
    for (ssize_t got; (got = ::recv(socket.get(), part, sizeof(part), 0)) > 0;) {
      text.append(part, static_cast<size_t>(got));
    }
    return text;
  }
  std::string Get(const std::string& path, const char* from = "127.0.0.1") const {
    return Receive(Send("GET " + path + " HTTP/1.0\r\n\r\n", from));
  }

  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<MetricsListener> listener_;
};

TEST_F(MetricsListenerTest, ServesMetricsAndNothingElse) {
  const std::string answer = Get("/metrics");
  EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
  EXPECT_NE(answer.find("text/plain; version=0.0.4"), std::string::npos) << answer;
  EXPECT_NE(answer.find("folio_test 7"), std::string::npos) << answer;
  EXPECT_NE(Get("/other").find("404"), std::string::npos);
  EXPECT_NE(Receive(Send("POST /metrics HTTP/1.0\r\n\r\n")).find("405"), std::string::npos);
}

TEST_F(MetricsListenerTest, HealthPathsSayWhatTheyAreTold) {
  bool live = true;
  bool ready = false;
  listener_ = *MetricsListener::Start("127.0.0.1:0", {}, {}, {registry_},
                                      {[&live] { return live; }, [&ready] { return ready; }, {}});
  EXPECT_NE(Get("/healthz").find(" 200 OK"), std::string::npos);
  EXPECT_NE(Get("/readyz").find(" 503 "), std::string::npos);
  live = false;
  ready = true;
  EXPECT_NE(Get("/healthz").find(" 503 "), std::string::npos);
  EXPECT_NE(Get("/readyz").find(" 200 OK"), std::string::npos);
}

TEST_F(MetricsListenerTest, MetricsMayBeForSomeAndHealthIsForAll) {
  MetricsAnswers answers;
  answers.may_read = [](std::string_view shown) { return shown == "Bearer secret"; };
  listener_ = *MetricsListener::Start("127.0.0.1:0", {}, {}, {registry_}, answers);
  const std::string refused = Get("/metrics");
  EXPECT_NE(refused.find(" 401 "), std::string::npos) << refused;
  EXPECT_NE(refused.find("WWW-Authenticate: Bearer"), std::string::npos) << refused;
  EXPECT_EQ(refused.find("folio_test"), std::string::npos) << refused;
  EXPECT_NE(Get("/healthz").find(" 200 OK"), std::string::npos);
  const Fd asked = Send("GET /metrics HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n");
  EXPECT_NE(Receive(asked).find("folio_test 7"), std::string::npos);
}

// More of them than an address may have; another address is served at once.
TEST_F(MetricsListenerTest, HalfSentRequestsHoldNobodyUp) {
  std::vector<Fd> stalled;
  for (int i = 0; i < 50; ++i)
    stalled.push_back(Send("GET /metrics HTTP/1.1\r\nHost:", "127.0.0.2"));
  EXPECT_NE(Get("/metrics").find("folio_test 7"), std::string::npos);
}

TEST_F(MetricsListenerTest, ConnectionsBeyondTheLimitOfAnAddressAreClosed) {
  Restart({.max_connections_per_peer = 1});
  const Fd first = Send("GET /metrics HTTP/1.1\r\nHost:", "127.0.0.2");
  EXPECT_EQ(Get("/metrics", "127.0.0.2"), "");
  EXPECT_NE(Get("/metrics", "127.0.0.3").find("folio_test 7"), std::string::npos);
}

TEST_F(MetricsListenerTest, ConnectionsBeyondTheLimitWaitForRoom) {
  Restart({.max_connections = 1});
  Fd first = Send("GET /metrics HTTP/1.1\r\nHost:", "127.0.0.2");
  const Fd second = Send("GET /metrics HTTP/1.0\r\n\r\n", "127.0.0.3");
  pollfd answered = {second.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&answered, 1, /*timeout=*/100), 0) << "an answer in spite of the limit";
  first.Close();
  EXPECT_NE(Receive(second).find("folio_test 7"), std::string::npos);
}

TEST_F(MetricsListenerTest, AConnectionThatSaysNothingIsClosed) {
  Restart({.idle_seconds = 1});
  EXPECT_EQ(Receive(Send("GET /metrics HTTP/1.1\r\nHost:")), "");  // returns at the end
}

TEST_F(MetricsListenerTest, ALongRequestIsRefused) {
  Restart({.max_request_bytes = 4096});
  const std::string answer =
      Receive(Send("GET /metrics HTTP/1.0\r\nX: " + std::string(5000, 'x') + "\r\n\r\n"));
  EXPECT_EQ(answer.find("200 OK"), std::string::npos) << answer;
  EXPECT_NE(Get("/metrics").find("folio_test 7"), std::string::npos);
}

TEST_F(MetricsListenerTest, AddressesInUseAndBadOnesAreErrors) {
  const std::string taken = "127.0.0.1:" + std::to_string(listener_->port());
  EXPECT_EQ(MetricsListener::Start(taken, {}, {}, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(MetricsListener::Start("127.0.0.1:70000", {}, {}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace folio::server
