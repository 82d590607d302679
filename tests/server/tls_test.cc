// The gRPC port with TLS, asked by gRPC's own clients.
#include "server/edge/tls.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "server/self_probe.h"
#include "tests/scratch_dir.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

constexpr std::chrono::seconds kPatience{30};

// Files of a server, made anew by Write.
class Files {
 public:
  explicit Files(bool wants_clients = false) : wants_clients_(wants_clients) { Write(root_); }

  void Write(const TestCertificate& root, int days = 1) {
    const TestCertificate server = MakeCertificate(root, "server", {"DNS:localhost"}, days);
    directory_.Write("cert.pem", server.cert);
    directory_.Write("key.pem", server.key);
    directory_.Write("clients.pem", clients_.cert);
  }
  server::TlsFiles tls() const {
    return {directory_.Path("cert.pem"), directory_.Path("key.pem"),
            wants_clients_ ? directory_.Path("clients.pem") : ""};
  }
  server::ServerOptions options() const {
    server::ServerOptions options;
    options.tls = tls();
    return options;
  }
  const ScratchDir& directory() const { return directory_; }
  const TestCertificate& root() const { return root_; }
  const TestCertificate& clients() const { return clients_; }

 private:
  const ScratchDir directory_;
  const bool wants_clients_;
  const TestCertificate root_ = MakeRoot("root");
  const TestCertificate clients_ = MakeRoot("root of clients");
};

std::shared_ptr<grpc::Channel> Connect(TestServer* server, const TestCertificate& root,
                                       const TestCertificate& shown = {}) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("localhost:", server->runner().grpc_port()),
                                   grpc::SslCredentials({root.cert, shown.key, shown.cert}),
                                   arguments);
}

grpc::Status GetInfo(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1::ServerInfo info;
  return v1::Control::NewStub(channel)->GetServerInfo(&context, {}, &info);
}

// Its certificate is read again about twice a second.
bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    if (holds()) return true;
  }
  return false;
}

TEST(Tls, ClientsThatKnowTheRootAreServed) {
  const Files files;
  TestServer server(files.options());
  const auto channel = Connect(&server, files.root());
  EXPECT_TRUE(GetInfo(channel).ok()) << GetInfo(channel).error_message();
  // More than one record, both ways.
  Generate long_answer(channel, Ask(std::string(200000, 'x')));
  EXPECT_TRUE(long_answer.Next().has_accepted());
  server.engine().Emit(Delta(std::string(100000, 'y')));
  EXPECT_EQ(long_answer.Next().delta().text().size(), 100000);
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(long_answer.Finish().ok());
}

TEST(Tls, PlaintextAndForeignRootsAreRefused) {
  const Files files;
  TestServer server(files.options());
  EXPECT_EQ(GetInfo(server.TcpChannel()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(GetInfo(Connect(&server, MakeRoot("another"))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(GetInfo(Connect(&server, files.root())).ok());
}

// Nobody reads a log line about it, every 15 seconds, for good.
TEST(Tls, TheServersOwnProbeFailsNoHandshake) {
  const Files files;
  TestServer server(WithMetrics(files.options()));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(server.runner().grpc_port()));
  server::SelfProbe::Port port{.what = "it", .question = server::TlsQuestion()};
  std::memcpy(&port.address, &address, sizeof(address));
  int num_asked = 0;
  port.has_place = [&num_asked] { return ++num_asked > 0; };
  server::SelfProbe probe({port}, {.between = 1, .patience = 1'000'000});
  // Each time but the first after an answer.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(probe.Deaf(), std::nullopt);
    return num_asked > 3;
  }));
  EXPECT_EQ(server.Metric(R"(folio_connections_closed_total{reason="tls"})"), 0);
}

TEST(Tls, ClientsShowACertificateWhereOneIsAskedFor) {
  const Files files(/*wants_clients=*/true);
  TestServer server(files.options());
  const auto status = [&](const TestCertificate& shown) {
    return GetInfo(Connect(&server, files.root(), shown)).error_code();
  };
  EXPECT_EQ(status(MakeCertificate(files.clients(), "client", {})), grpc::StatusCode::OK);
  EXPECT_EQ(status({}), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status(MakeCertificate(files.root(), "client", {})), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status(MakeCertificate(files.clients(), "client", {}, /*days=*/-1)),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(Tls, ChangedFilesAreForNewConnectionsAndOldOnesGoOn) {
  Files files;
  TestServer server(files.options());
  const auto old = Connect(&server, files.root());
  Generate answer(old, Ask("hello"));
  EXPECT_TRUE(answer.Next().has_accepted());
  const TestCertificate next = MakeRoot("next");
  files.Write(next);
  EXPECT_TRUE(Eventually([&] { return GetInfo(Connect(&server, next)).ok(); }));
  EXPECT_FALSE(GetInfo(Connect(&server, files.root())).ok());
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(answer.Finish().ok());
  EXPECT_TRUE(GetInfo(old).ok());
}

// Certificate, key and token are all replaced while answers are written, and calls go on to be
// made.
TEST(Tls, FiftyStreamsSeeNothingOfARotation) {
  constexpr int kStreams = 50;
  constexpr char kTokens[] = R"({"tenants": {"a": {"token_sha256": [$0]}}})";
  // Of "alpha" and "beta".
  const std::string first = R"("8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8")";
  const std::string second =
      R"("f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753")";
  Files files;
  server::ServerOptions options = files.options();
  options.tenants =
      files.directory().Write("tenants.json", absl::Substitute(kTokens, first + ", " + second));
  TestServer server(options);
  const auto old = Connect(&server, files.root());
  const auto stub = v1::Inference::NewStub(old);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>>> streams;
  v1::GenerateEvent event;
  for (int n = 0; n < kStreams; ++n) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->AddMetadata("authorization", "Bearer alpha");
    streams.push_back(stub->Generate(contexts.back().get(), Ask("hello")));
    ASSERT_TRUE(streams.back()->Read(&event));
  }
  const auto status = [](const std::shared_ptr<grpc::Channel>& channel, const char* token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + token);
    v1::ServerInfo info;
    return v1::Control::NewStub(channel)->GetServerInfo(&context, {}, &info).error_code();
  };
  const TestCertificate next = MakeRoot("next");
  files.Write(next);
  files.directory().Write("tenants.json", absl::Substitute(kTokens, second));
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(status(old, "beta"), grpc::StatusCode::OK);
    return status(Connect(&server, next), "beta") == grpc::StatusCode::OK &&
           status(old, "alpha") == grpc::StatusCode::UNAUTHENTICATED;
  }));
  for (int n = 0; n < kStreams; ++n) {
    server.engine().Emit(Completed(1), static_cast<RequestId>(n + 1));
    while (streams[static_cast<size_t>(n)]->Read(&event)) {
    }
    EXPECT_TRUE(streams[static_cast<size_t>(n)]->Finish().ok());
  }
}

TEST(Tls, BrokenFilesAreNotTaken) {
  Files files;
  auto reloader = server::TlsReloader::Start(files.tls());
  ASSERT_TRUE(reloader.ok()) << reloader.status();
  const auto before = (*reloader)->context();
  absl::Status error;
  EXPECT_EQ((*reloader)->Look(&error), server::TlsReloader::Outcome::kUnchanged);
  files.directory().Write("key.pem", "no key");
  EXPECT_EQ((*reloader)->Look(&error), server::TlsReloader::Outcome::kFailed);
  EXPECT_NE(std::string(error.message()).find("key.pem"), std::string::npos) << error;
  EXPECT_EQ((*reloader)->context(), before);
  EXPECT_EQ((*reloader)->Look(&error), server::TlsReloader::Outcome::kUnchanged);
  files.Write(files.root());
  EXPECT_EQ((*reloader)->Look(&error), server::TlsReloader::Outcome::kLoaded);
  EXPECT_NE((*reloader)->context(), before);
}

TEST(Tls, AKeyOfAnotherCertificateOrNoFileAtAllIsRefusedAtStart) {
  Files files;
  const TestCertificate other = MakeCertificate(files.root(), "other", {});
  server::TlsFiles wrong = files.tls();
  wrong.key = files.directory().Write("other.pem", other.key);
  EXPECT_TRUE(absl::IsInvalidArgument(server::TlsContext::Load(wrong).status()));
  wrong.key = files.directory().Path("absent.pem");
  EXPECT_TRUE(absl::IsInvalidArgument(server::TlsContext::Load(wrong).status()));
  wrong = files.tls();
  wrong.client_ca = files.directory().Write("empty.pem", "");
  EXPECT_TRUE(absl::IsInvalidArgument(server::TlsContext::Load(wrong).status()));
}

}  // namespace
}  // namespace folio::testing
