// Metrics of single tenants: which there are, and how many.
#include "server/tenant_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/scratch_dir.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

using server::RpcRecord;
using server::TenantMetrics;

RpcRecord Call(const std::string& tenant, const char* code = "OK", const std::string& reason = "") {
  return {.method = "Generate", .code = code, .reason = reason, .tenant = tenant};
}

// Values by labels, "tenant=a,grpc_code=OK".
std::map<std::string, double> Values(TenantMetrics* metrics, const std::string& name,
                                     const std::vector<TenantUse>& uses = {}) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : metrics->Collect(uses)) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string labels;
      for (const auto& label : metric.label) {
        absl::StrAppend(&labels, labels.empty() ? "" : ",", label.name, "=", label.value);
      }
      values[labels] = metric.counter.value;
    }
  }
  return values;
}

TEST(TenantMetrics, CountsCallsAndWhatTheyTook) {
  TenantMetrics metrics;
  metrics.SetTenants({"a", "b"});
  RpcRecord answered = Call("a");
  answered.work = RpcRecord::Work{
      .prompt_tokens = 100, .completion_tokens = 7, .queue_seconds = 0.5, .computed_tokens = 60};
  metrics.OnCall(answered);
  metrics.OnCall(answered);
  metrics.OnCall(Call("a", "RESOURCE_EXHAUSTED", "QUEUE_FULL"));
  metrics.OnCall(Call("a", "FAILED_PRECONDITION", "DEADLINE_TOO_SOON"));
  metrics.OnCall(Call("a", "NOT_FOUND", "DOCUMENT_NOT_FOUND"));
  EXPECT_THAT(Values(&metrics, "folio_tenant_requests_total"),
              ElementsAre(Pair("tenant=a,grpc_code=FAILED_PRECONDITION", 1),
                          Pair("tenant=a,grpc_code=NOT_FOUND", 1), Pair("tenant=a,grpc_code=OK", 2),
                          Pair("tenant=a,grpc_code=RESOURCE_EXHAUSTED", 1)));
  EXPECT_THAT(Values(&metrics, "folio_tenant_requests_rejected_total"),
              ElementsAre(Pair("tenant=a,reason=DEADLINE_TOO_SOON", 1),
                          Pair("tenant=a,reason=QUEUE_FULL", 1)));
  EXPECT_THAT(Values(&metrics, "folio_tenant_tokens_total"),
              ElementsAre(Pair("tenant=a,kind=completion", 14), Pair("tenant=a,kind=prompt", 120),
                          Pair("tenant=b,kind=completion", 0), Pair("tenant=b,kind=prompt", 0)));
  EXPECT_THAT(Values(&metrics, "folio_tenant_queue_seconds_total"),
              ElementsAre(Pair("tenant=a", 1), Pair("tenant=b", 0)));
  const std::vector<TenantUse> uses = {{"a", 4096, 2}, {"stranger", 1, 1}};
  EXPECT_THAT(Values(&metrics, "folio_tenant_kv_bytes", uses),
              ElementsAre(Pair("tenant=a", 4096), Pair("tenant=b", 0)));
  EXPECT_THAT(Values(&metrics, "folio_tenant_documents", uses),
              ElementsAre(Pair("tenant=a", 2), Pair("tenant=b", 0)));
  EXPECT_THAT(Values(&metrics, "folio_tenant_kv_bytes"),
              ElementsAre(Pair("tenant=a", 0), Pair("tenant=b", 0)));
}

TEST(TenantMetrics, KnowsNoAddressesAndNoTenantsThatAreGone) {
  TenantMetrics metrics;
  metrics.OnCall(Call(""));
  EXPECT_THAT(Values(&metrics, "folio_tenant_requests_total", {{"10.0.0.1", 1, 1}}), IsEmpty());
  EXPECT_THAT(Values(&metrics, "folio_tenant_kv_bytes", {{"10.0.0.1", 1, 1}}), IsEmpty());
  metrics.SetTenants({"a", "b"});
  metrics.OnCall(Call("a"));
  metrics.OnCall(Call("b"));
  metrics.SetTenants({"b", "c"});
  metrics.OnCall(Call("a"));  // was under way
  EXPECT_THAT(Values(&metrics, "folio_tenant_requests_total"),
              ElementsAre(Pair("tenant=b,grpc_code=OK", 1)));
}

TEST(TenantMetrics, ThoseBeyondAHundredAreOne) {
  TenantMetrics metrics;
  std::set<std::string> names;
  for (int n = 0; n < 250; ++n) names.insert(absl::StrCat("t", n));
  metrics.SetTenants(names);
  // The first to call have series of their own.
  for (int n = 249; n >= 0; --n) metrics.OnCall(Call(absl::StrCat("t", n)));
  auto calls = Values(&metrics, "folio_tenant_requests_total");
  EXPECT_EQ(calls.size(), TenantMetrics::kMaxTenants + 1);
  EXPECT_EQ(calls["tenant=t249,grpc_code=OK"], 1);
  EXPECT_EQ(calls["tenant=(others),grpc_code=OK"], 150);
  EXPECT_EQ(
      Values(&metrics, "folio_tenant_documents", {{"t0", 0, 3}, {"t1", 0, 4}})["tenant=(others)"],
      7);
  // The place of one that is gone is free.
  names.erase("t249");
  metrics.SetTenants(names);
  metrics.OnCall(Call("t5"));
  metrics.OnCall(Call("t6"));
  calls = Values(&metrics, "folio_tenant_requests_total");
  EXPECT_EQ(calls.size(), TenantMetrics::kMaxTenants + 1);
  EXPECT_EQ(calls["tenant=t5,grpc_code=OK"], 1);
  EXPECT_EQ(calls["tenant=(others),grpc_code=OK"], 151);
}

// The SHA-256 of "alpha".
constexpr char kOne[] = R"({"tenants": {"acme": {"token_sha256":
    ["8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"]}}})";
constexpr char kNone[] = R"({"tenants": {}})";

TEST(TenantMetrics, AreOfTheTenantsOfTheFile) {
  const ScratchDir dir;
  server::ServerOptions options;
  options.tenants = dir.Write("tenants.json", kOne);
  TestServer server(WithMetrics(options));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer alpha");
  v1::ServerInfo info;
  EXPECT_TRUE(v1::Control::NewStub(server.channel())->GetServerInfo(&context, {}, &info).ok());
  server.engine().set_tenant_uses({{"acme", 77, 1}});
  const std::string series = R"(folio_tenant_requests_total{tenant="acme",grpc_code="OK"})";
  while (server.Metrics().find(series) == std::string::npos) {
  }
  EXPECT_EQ(server.Metric(R"(folio_tenant_kv_bytes{tenant="acme"})"), 77);
  dir.Write("tenants.json", kNone);
  while (server.Metrics().find("acme") != std::string::npos) {
  }
}

TEST(TenantMetrics, ThereAreNoneWithoutTheFile) {
  TestServer server(WithMetrics());
  Generate call(server.channel(), Ask("hello"));
  server.engine().WaitForRequest();
  server.engine().set_tenant_uses({{"127.0.0.1", 77, 1}});
  server.engine().Emit(Completed(1));
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_THAT(server.Metrics(),
              AllOf(HasSubstr("folio_log_calls_left_out_total 0"), Not(HasSubstr("tenant="))));
}

}  // namespace
}  // namespace folio::testing
