// What clocks, certificates and scrapers do to a server: rows 16, 18 and 19 of docs/faults.md.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/edge/fd.h"
#include "tests/faults/wall_clock.h"
#include "tests/faults/whole_server.h"
#include "tests/scratch_dir.h"
#include "tests/server/test_certificates.h"

namespace folio::testing {
namespace {

// Nothing that runs ends for a calendar that is set, and nothing waits longer.
TEST(Faults, ClockJumps) {
  WholeServer server;
  UploadWhole(&server, "book", BookText(2000));
  for (const std::chrono::seconds jump : {std::chrono::hours(48), -std::chrono::hours(48)}) {
    Generate running(server.channel(), Work(5, 1000), std::chrono::minutes(10));
    while (!running.Next().has_delta()) {
    }
    SetWallClock(jump);
    const Answer answer = ReadAll(&running);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    Generate timed(server.channel(), WorkThatMightEnd(5, 5000), std::chrono::milliseconds(200));
    EXPECT_EQ(timed.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_TRUE(AnswerOf(server, Question("book")).status.ok());
    SetWallClock(std::chrono::seconds(0));
  }
  EXPECT_TRUE(FindDocument(server, "book").has_value());
}

TEST(Faults, PastDeadlines) {
  WholeServer server;
  Generate past(server.channel(), Work(5, 5), -std::chrono::hours(1));
  EXPECT_EQ(past.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(server.KvUsedWhenIdle(), 0);
  EXPECT_EQ(server.Metric(R"(folio_prompt_tokens_total{source="computed"})"), 0);
}

class Listener {
 public:
  Listener() {
    Write(MakeCertificate(root_, "server", {"DNS:localhost"}));
    // Of "alpha".
    files_.Write("tenants.json", R"({"tenants": {"a": {"token_sha256": [
      "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]}}})");
  }
  void Write(const TestCertificate& certificate) {
    files_.Write("cert.pem", certificate.cert);
    files_.Write("key.pem", certificate.key);
  }
  server::ServerOptions Options() const {
    server::ServerOptions options = WholeOptions();
    options.tls = {files_.Path("cert.pem"), files_.Path("key.pem"), ""};
    options.tenants = files_.Path("tenants.json");
    return options;
  }
  const TestCertificate& root() const { return root_; }

 private:
  const ScratchDir files_;
  const TestCertificate root_ = MakeRoot("root");
};

TEST(Faults, CertificatesAndTokens) {
  Listener listener;
  WholeServer server(listener.Options());
  // Of a new connection.
  const auto ask = [&](const std::string& token, const std::string& target = "localhost") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel(absl::StrCat(target, ":", server.runner().grpc_port()),
                                  grpc::SslCredentials({listener.root().cert, "", ""}), arguments);
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ServerInfo info;
    return v1::Control::NewStub(channel)->GetServerInfo(&context, {}, &info).error_code();
  };
  const auto until = [](grpc::StatusCode code, const std::function<grpc::StatusCode()>& call) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (call() != code && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_EQ(call(), code);
  };
  EXPECT_EQ(ask("alpha"), grpc::StatusCode::OK);
  EXPECT_EQ(ask(""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ask("beta"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(ask("alpha", "127.0.0.1"), grpc::StatusCode::UNAVAILABLE);  // not its name
  // Another certificate is taken without a restart; one that has ended is one that clients refuse.
  listener.Write(MakeCertificate(listener.root(), "other", {"DNS:elsewhere.example"}));
  until(grpc::StatusCode::UNAVAILABLE, [&] { return ask("alpha"); });
  listener.Write(MakeCertificate(listener.root(), "server", {"DNS:localhost"}));
  until(grpc::StatusCode::OK, [&] { return ask("alpha"); });
  listener.Write(MakeCertificate(listener.root(), "server", {"DNS:localhost"}, -1));
  until(grpc::StatusCode::UNAVAILABLE, [&] { return ask("alpha"); });
  listener.Write(MakeCertificate(listener.root(), "server", {"DNS:localhost"}));
  until(grpc::StatusCode::OK, [&] { return ask("alpha"); });
  // What is for administrators.
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer alpha");
  v1::ListDocumentsRequest all;
  all.set_all_tenants(true);
  v1::ListDocumentsResponse response;
  EXPECT_EQ(v1::Documents::NewStub(server.channel())
                ->ListDocuments(&context, all, &response)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

// Scrapers that ask and do not read, or ask by halves, and one that asks without a pause.
TEST(Faults, MetricsScraperHangs) {
  WholeServer server;
  std::vector<server::Fd> hanging;
  for (int n = 0; n < 16; ++n) {
    server::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(server.runner().metrics_port()));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request =
        n % 2 == 0 ? "GET /metrics HTTP/1.1\r\nHost:" : "GET /metrics HTTP/1.0\r\n\r\n";
    ASSERT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    hanging.push_back(std::move(fd));
  }
  const std::string steps = "folio_engine_steps_total";
  const double before = server.Metric(steps);
  Generate running(server.channel(), Work(5, 500));
  std::atomic<bool> ended{false};
  std::atomic<int> num_scrapes{0};
  std::thread scraping([&] {
    while (!ended) num_scrapes += server.Metrics().empty() ? 0 : 1;
  });
  const Answer answer = ReadAll(&running);
  ended = true;
  scraping.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.completed.usage().completion_tokens(), 500);
  EXPECT_GT(num_scrapes, 0);
  server.WaitUntilIdle();
  EXPECT_GE(server.Metric(steps) - before, 500);
}

}  // namespace
}  // namespace folio::testing
