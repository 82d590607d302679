#include "server/auth/tenant_directory.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

constexpr char kToken[] = "8b4b4e0ca9e5b0aecd4d3b8c7a1c2c6c3a5c6e7d9d0f6c1b2a3d4e5f60718293";

std::string Why(const std::string& tenants) {
  return std::string(
      TenantDirectory::Parse(absl::StrCat(R"({"tenants": )", tenants, "}")).status().message());
}

TEST(TenantDirectory, KnowsTenantsByTokenAndCertificate) {
  // echo -n secret | sha256sum
  const auto directory = TenantDirectory::Parse(R"({
    // Comments are allowed.
    "tenants": {
      "acme": {"token_sha256": ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"],
               "weight": 2.5, "priority": -3, "max_documents": 7, "max_kv_bytes": 8000000000,
               "max_unfinished_uploads": 3, "max_open_calls": 4, "max_connections": 5,
               "max_request_memory_bytes": 6000000000, "requests_per_minute": 60,
               "tokens_per_minute": 7000000000, "metrics": true},
      "ops": {"certificates": ["spiffe://example/ops", "ops.example"], "admin": true}
    }})");
  ASSERT_TRUE(directory.ok()) << directory.status();
  const KnownTenant* acme = (*directory)->OfToken("secret");
  ASSERT_NE(acme, nullptr);
  EXPECT_EQ(acme->tenant->name, "acme");
  EXPECT_EQ(acme->tenant->weight, 2.5);
  EXPECT_EQ(acme->tenant->priority, -3);
  EXPECT_EQ(acme->tenant->limits.max_documents, 7);
  EXPECT_EQ(acme->tenant->limits.max_kv_bytes, 8000000000);
  EXPECT_EQ(acme->tenant->limits.max_unfinished_uploads, 3);
  EXPECT_EQ(acme->calls.max_open_calls, 4);
  EXPECT_EQ(acme->calls.max_connections, 5);
  EXPECT_EQ(acme->calls.max_request_memory_bytes, 6000000000);
  EXPECT_EQ(acme->calls.requests_per_minute, 60);
  EXPECT_EQ(acme->calls.tokens_per_minute, 7000000000);
  EXPECT_TRUE(acme->reads_metrics);
  EXPECT_FALSE(acme->is_admin);
  for (const char* wrong : {"", "Secret", "secret ", "secre"}) {
    EXPECT_EQ((*directory)->OfToken(wrong), nullptr) << wrong;
  }
  const std::vector<std::string> shown = {"other.example", "ops.example"};
  const KnownTenant* ops = (*directory)->OfCertificate(shown);
  ASSERT_NE(ops, nullptr);
  EXPECT_TRUE(ops->is_admin);
  EXPECT_EQ((*directory)->OfCertificate({}), nullptr);
  EXPECT_EQ((*directory)->Named("acme"), acme);
  EXPECT_EQ((*directory)->Named("nobody"), nullptr);
}

TEST(TenantDirectory, SaysWhatIsWrongAndWhere) {
  EXPECT_NE(Why(R"({"a": {"wieght": 1}})").find("'a': 'wieght'"), std::string::npos);
  for (const char* bad : {"[]",
                          "1",
                          R"({"": {}})",
                          R"({"a/b": {}})",
                          R"({"a": 1})",
                          R"({"a": {"weight": 0}})",
                          R"({"a": {"weight": "1"}})",
                          R"({"a": {"priority": 101}})",
                          R"({"a": {"priority": 0.5}})",
                          R"({"a": {"admin": 1}})",
                          R"({"a": {"max_documents": -1}})",
                          R"({"a": {"max_documents": 99999999999}})",
                          R"({"a": {"max_kv_bytes": 1e400}})",
                          R"({"a": {"max_kv_bytes": 18446744073709551615}})",
                          R"({"a": {"token_sha256": "ab"}})",
                          R"({"a": {"token_sha256": ["ab"]}})",
                          R"({"a": {"token_sha256": [1]}})",
                          R"({"a": {"certificates": [""]}})",
                          R"({"a": {"metrics": "yes"}})",
                          R"({"a": {"requests_per_minute": -1}})",
                          R"({"a": {"tokens_per_minute": 1.5}})",
                          R"({"a": {"certificates": ["x"]}, "b": {"certificates": ["x"]}})"}) {
    EXPECT_NE(Why(bad), "") << bad;
  }
  const std::string twice = absl::StrCat(R"({"token_sha256": [")", kToken, R"("]})");
  EXPECT_EQ(Why(absl::StrCat(R"({"a": )", twice, "}")), "");
  EXPECT_NE(Why(absl::StrCat(R"({"a": )", twice, R"(, "b": )", twice, "}")), "");
  EXPECT_FALSE(TenantDirectory::Parse("").ok());
  EXPECT_FALSE(TenantDirectory::Parse("{}").ok());
  EXPECT_FALSE(TenantDirectory::Parse(R"({"tenants": {}, "more": 1})").ok());
  EXPECT_TRUE(TenantDirectory::Parse(R"({"tenants": {}})").ok());
}

TEST(TenantDirectory, AFileThatIsNotThereIsNamed) {
  const absl::Status status = TenantDirectory::Read("/nowhere/tenants.json").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(std::string(status.message()).find("/nowhere/tenants.json"), std::string::npos);
}

}  // namespace
}  // namespace folio::server
