#include "server/audit_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/scratch_dir.h"
#include "tests/server/tenant_client.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using Json = nlohmann::json;
using server::AuditLog;

const SteadyTime kNow{std::chrono::hours(1)};

std::vector<Json> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(AuditLog, KeepsWhatIsAboutDocumentsAndWhatWasNotLetIn) {
  const ScratchDir directory;
  const std::string path = directory.Path("audit");
  AuditLog log;
  log.Add({.method = "ListDocuments", .code = "OK"}, kNow);  // to no file yet
  ASSERT_TRUE(log.Open(path).ok());
  log.Add({.method = "Tokenize", .code = "OK", .tenant = "acme"}, kNow);
  EXPECT_TRUE(LinesOf(path).empty());
  log.Add({.method = "Tokenize", .code = "UNAUTHENTICATED", .address = "10.0.0.1"}, kNow);
  log.Add({.method = "CancelRequest", .code = "OK", .request_id = "7"}, kNow);
  log.Add({.method = "DeleteDocument",
           .code = "NOT_FOUND",
           .tenant = "acme",
           .identity = "ops",
           .document_id = "a\"\xff"},
          kNow);
  const std::vector<Json> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0]["address"], "10.0.0.1");
  EXPECT_EQ(lines[1]["request_id"], "7");
  EXPECT_EQ(lines[2]["identity"], "ops");
  EXPECT_EQ(lines[2]["document_id"], "a\"\uFFFD");
  EXPECT_FALSE(lines[2].contains("address"));
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
}

TEST(AuditLog, StrangersFillNoDisk) {
  const ScratchDir directory;
  const std::string path = directory.Path("audit");
  AuditLog log;
  ASSERT_TRUE(log.Open(path).ok());
  const server::RpcRecord refused{.method = "Generate", .code = "UNAUTHENTICATED"};
  for (int64_t i = 0; i < AuditLog::kRefusalsPerMinute + 5; ++i) log.Add(refused, kNow);
  EXPECT_EQ(LinesOf(path).size(), AuditLog::kRefusalsPerMinute);
  log.Add({.method = "ListDocuments", .code = "OK"}, kNow);
  EXPECT_EQ(LinesOf(path).back()["refusals_left_out"], 5);
  log.Add(refused, kNow + std::chrono::seconds(1));
  EXPECT_FALSE(LinesOf(path).back().contains("refusals_left_out"));
}

TEST(AuditLog, AFileThatWasMovedAwayIsBegunAnew) {
  const ScratchDir directory;
  const std::string path = directory.Path("audit");
  AuditLog log;
  ASSERT_TRUE(log.Open(path).ok());
  const server::RpcRecord record{.method = "ListDocuments", .code = "OK"};
  log.Add(record, kNow);
  std::filesystem::rename(path, path + ".1");
  log.Add(record, kNow);
  log.Look();
  log.Add(record, kNow);
  EXPECT_EQ(LinesOf(path + ".1").size(), 2);
  EXPECT_EQ(LinesOf(path).size(), 1);
  EXPECT_EQ(log.dropped(), 0);
}

TEST(AuditLog, WhatCannotBeWrittenIsCountedOrRefused) {
  EXPECT_EQ(AuditLog().Open("/nowhere/audit").code(), absl::StatusCode::kUnavailable);
  AuditLog full;
  ASSERT_TRUE(full.Open("/dev/full").ok());
  full.Add({.method = "ListDocuments", .code = "OK"}, kNow);
  EXPECT_EQ(full.dropped(), 1);
}

// The SHA-256 of "alpha" and "operator".
constexpr char kTenants[] = R"({"tenants": {
  "a": {"token_sha256": ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]},
  "ops": {"admin": true,
          "token_sha256": ["06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23"]}}})";

TEST(AuditLog, SaysWhoDidWhatToWhichDocument) {
  const ScratchDir directory;
  server::ServerOptions options;
  options.tenants = directory.Write("tenants.json", kTenants);
  options.audit_log = directory.Path("audit");
  TestServer server(options);
  TenantClient a(server.channel(), Bearer("alpha"));
  Metadata as_a = Bearer("operator");
  as_a.emplace_back("x-tenant-id", "a");
  ASSERT_TRUE(a.Upload("book", "a secret text").ok());
  EXPECT_FALSE(TenantClient(server.channel(), Bearer("nobody")).Ask("book").ok());
  v1::ServerInfo info;
  EXPECT_TRUE(a.Info(&info).ok());
  EXPECT_TRUE(TenantClient(server.channel(), as_a).Delete("book").ok());
  server.Stop();  // lines are written when the server is done with a call

  std::vector<std::string> said;
  for (const Json& line : LinesOf(options.audit_log)) {
    EXPECT_EQ(line.dump().find("secret"), std::string::npos);
    said.push_back(absl::StrCat(line.value("tenant", ""), " ", line.value("identity", ""), " ",
                                line.value("method", ""), " ", line.value("document_id", ""), " ",
                                line.value("code", "")));
  }
  std::sort(said.begin(), said.end());
  EXPECT_EQ(said,
            (std::vector<std::string>{"  Generate  UNAUTHENTICATED", "a a UploadDocument book OK",
                                      "a ops DeleteDocument book OK"}));
}

}  // namespace
}  // namespace folio::testing
