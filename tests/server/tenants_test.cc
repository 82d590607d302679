// Who may call, and that nobody learns anything of another tenant's documents.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/edge/tls.h"
#include "tests/scratch_dir.h"
#include "tests/server/tenant_client.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

// The SHA-256 of "alpha", "beta" and "operator".
constexpr char kTenants[] = R"({"tenants": {
  "a": {"token_sha256": ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]},
  "b": {"token_sha256": ["f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"],
        "certificates": ["spiffe://example/b"]},
  "ops": {"admin": true,
          "token_sha256": ["06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23"]}}})";

class TenantsTest : public ::testing::Test {
 protected:
  server::ServerOptions Options() {
    server::ServerOptions options;
    options.tenants = directory_.Write("tenants.json", kTenants);
    return options;
  }
  TenantClient As(const Metadata& metadata) { return {server_.channel(), metadata}; }
  grpc::StatusCode InfoAs(const Metadata& metadata, v1::ServerInfo* info) {
    return As(metadata).Info(info).error_code();
  }

  const ScratchDir directory_;
  TestServer server_{Options()};
  TenantClient a_ = As(Bearer("alpha"));
  TenantClient b_ = As(Bearer("beta"));
  TenantClient ops_ = As(Bearer("operator"));
};

TEST_F(TenantsTest, OnlyKnownTokensAreTaken) {
  v1::ServerInfo info;
  EXPECT_EQ(InfoAs(Bearer("alpha"), &info), grpc::StatusCode::OK);
  EXPECT_EQ(info.tenant(), "a");
  EXPECT_FALSE(info.admin());
  EXPECT_EQ(InfoAs({{"authorization", "bearer operator"}}, &info), grpc::StatusCode::OK);
  EXPECT_TRUE(info.admin());
  for (const Metadata& metadata : std::vector<Metadata>{
           {},
           Bearer(""),
           Bearer("Alpha"),
           {{"authorization", "alpha"}},
           {{"authorization", "Basic YTph"}},
           {{"authorization", "Bearer alpha"}, {"authorization", "Bearer beta"}}}) {
    EXPECT_EQ(InfoAs(metadata, &info), grpc::StatusCode::UNAUTHENTICATED);
  }
  // Streams, too.
  TenantClient nobody = As({});
  EXPECT_EQ(nobody.Ask("book").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(nobody.Upload("book", "text").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(nobody.Watch("book").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(DetailsOf(nobody.Get("book", nullptr)).info.reason(), "UNAUTHENTICATED");
}

TEST_F(TenantsTest, TheSameNameIsADocumentOfEach) {
  ASSERT_TRUE(a_.Upload("book", "of a").ok());
  ASSERT_TRUE(b_.Upload("book", "of b, longer").ok());
  v1::Document document;
  ASSERT_TRUE(a_.Get("book", &document).ok());
  EXPECT_EQ(document.size_bytes(), 4);
  EXPECT_EQ(document.tenant(), "");
  ASSERT_TRUE(b_.Get("book", &document).ok());
  EXPECT_EQ(document.size_bytes(), 12);
  ASSERT_TRUE(b_.Delete("book").ok());
  EXPECT_TRUE(a_.Get("book", &document).ok());
}

TEST_F(TenantsTest, ListsHaveOwnDocumentsOnly) {
  for (const char* id : {"x", "y", "z"}) ASSERT_TRUE(a_.Upload(id, "text").ok());
  ASSERT_TRUE(b_.Upload("m", "text").ok());
  v1::ServerInfo info;
  const auto count = [&](TenantClient* client) {
    EXPECT_TRUE(client->Info(&info).ok());
    return info.num_documents();
  };
  EXPECT_EQ(count(&a_), 3);
  EXPECT_EQ(count(&b_), 1);
  EXPECT_EQ(count(&ops_), 4);
  v1::ListDocumentsRequest two;
  two.set_page_size(2);
  EXPECT_EQ(a_.Ids(two), (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_EQ(b_.Ids(two), (std::vector<std::string>{"m"}));
  EXPECT_EQ(ops_.Ids(two), (std::vector<std::string>{}));
  two.set_all_tenants(true);
  EXPECT_EQ(ops_.Ids(two), (std::vector<std::string>{"a:x", "a:y", "a:z", "b:m"}));
  v1::ListDocumentsResponse response;
  EXPECT_EQ(a_.List(two, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(TenantsTest, AdministratorsActInTheNameOfOthers) {
  ASSERT_TRUE(a_.Upload("book", "text").ok());
  Metadata metadata = Bearer("operator");
  metadata.emplace_back("x-tenant-id", "a");
  v1::Document document;
  EXPECT_TRUE(As(metadata).Get("book", &document).ok());
  EXPECT_TRUE(As(metadata).Delete("book").ok());
  EXPECT_EQ(a_.Get("book", &document).error_code(), grpc::StatusCode::NOT_FOUND);
  for (const char* name : {"a", "nobody", ""}) {
    Metadata other = Bearer("beta");
    other.emplace_back("x-tenant-id", name);
    EXPECT_EQ(As(other).Get("book", &document).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  Metadata own = Bearer("beta");
  own.emplace_back("x-tenant-id", "b");
  EXPECT_EQ(As(own).Get("book", &document).error_code(), grpc::StatusCode::NOT_FOUND);
}

// What is absent and what is another's are told apart by nothing: code, message and details.
TEST_F(TenantsTest, NoCallTellsADocumentOfAnotherFromNone) {
  std::vector<std::string> of_a;
  for (int i = 0; i < 10; ++i) {
    of_a.push_back(absl::StrCat("secret-", i));
    ASSERT_TRUE(a_.Upload(of_a.back(), "text of a").ok());
  }
  using Call = std::function<grpc::Status(const std::string&)>;
  const std::vector<Call> calls = {
      [&](const std::string& id) {
        v1::Document document;
        return b_.Get(id, &document);
      },
      [&](const std::string& id) { return b_.Delete(id); },
      [&](const std::string& id) { return b_.Save(id); },
      [&](const std::string& id) { return b_.Update(id); },
      [&](const std::string& id) { return b_.Watch(id); },
      [&](const std::string& id) { return b_.Ask(id); },
      [&](const std::string& id) { return b_.AskMany(id); },
      [&](const std::string& id) { return b_.Estimate(id); },
  };
  std::mt19937 random(7);
  for (int n = 0; n < 10000; ++n) {
    const std::string& there = of_a[random() % of_a.size()];
    const std::vector<std::string> forms = {there, absl::StrCat("a/", there),
                                            absl::StrCat("../a/", there),
                                            absl::StrCat("a%2F", there)};
    const size_t form = random() % forms.size();
    const std::string& id = forms[form];
    const std::string absent = absl::StrReplaceAll(id, {{"secret", "absent"}});
    const Call& call = calls[random() % calls.size()];
    const grpc::Status of_other = call(id);
    const grpc::Status of_none = call(absent);
    ASSERT_EQ(of_other.error_code(),
              form == 0 ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::INVALID_ARGUMENT);
    const auto without = [](const std::string& text) {
      return absl::StrReplaceAll(text, {{"secret", "absent"}});
    };
    ASSERT_EQ(of_other.error_code(), of_none.error_code()) << id;
    ASSERT_EQ(without(of_other.error_message()), of_none.error_message()) << id;
    ASSERT_EQ(without(of_other.error_details()), of_none.error_details()) << id;
  }
  EXPECT_EQ(a_.Ids().size(), 10);
}

TEST_F(TenantsTest, TokensAreReplacedWhileTheServerRuns) {
  v1::ServerInfo info;
  directory_.Write("tenants.json", absl::StrReplaceAll(kTenants, {{"8ed3", "0000"}}));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (a_.Info(&info).ok() && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(a_.Info(&info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(b_.Info(&info).ok());
}

TEST_F(TenantsTest, OthersRequestsAreSeenByAdministratorsAlone) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer alpha");
  const auto stub = v1::Inference::NewStub(server_.channel());
  const auto reader = stub->Generate(&context, Ask("hello"));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const auto count = [&](const std::string& token) {
    grpc::ClientContext list;
    list.AddMetadata("authorization", "Bearer " + token);
    v1::ListRequestsResponse response;
    EXPECT_TRUE(v1::Control::NewStub(server_.channel())->ListRequests(&list, {}, &response).ok());
    return response.requests_size();
  };
  EXPECT_EQ(count("alpha"), 1);
  EXPECT_EQ(count("beta"), 0);
  EXPECT_EQ(count("operator"), 1);
  server_.engine().Emit(Completed(1));
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(Tenants, ACertificateNamesItsTenant) {
  const ScratchDir directory;
  const TestCertificate root = MakeRoot("root");
  const TestCertificate server_certificate = MakeCertificate(root, "server", {"DNS:localhost"});
  server::ServerOptions options;
  options.tls = {directory.Write("cert.pem", server_certificate.cert),
                 directory.Write("key.pem", server_certificate.key),
                 directory.Write("root.pem", root.cert)};
  options.tenants = directory.Write("tenants.json", kTenants);
  TestServer server(options);
  const auto info = [&](const TestCertificate& shown, v1::ServerInfo* to) {
    const auto channel =
        grpc::CreateChannel(absl::StrCat("localhost:", server.runner().grpc_port()),
                            grpc::SslCredentials({root.cert, shown.key, shown.cert}));
    return TenantClient(channel, {}).Info(to).error_code();
  };
  v1::ServerInfo of_b;
  EXPECT_EQ(info(MakeCertificate(root, "x", {"DNS:other", "URI:spiffe://example/b"}), &of_b),
            grpc::StatusCode::OK);
  EXPECT_EQ(of_b.tenant(), "b");
  v1::ServerInfo unknown;
  EXPECT_EQ(info(MakeCertificate(root, "spiffe://example/b", {"DNS:other"}), &unknown),
            grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace folio::testing
