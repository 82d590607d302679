// Spans, from calls to a collector.
#include "server/span_exporter.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/base/mutex.h"
#include "tests/scratch_dir.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"

namespace folio::testing {
namespace {

using server::SpanExporter;
namespace otlp = server::otlp;

// Keeps the spans that it gets.
class FakeCollector final : public otlp::TraceService::Service {
 public:
  explicit FakeCollector(const std::shared_ptr<grpc::ServerCredentials>& credentials =
                             grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Export(grpc::ServerContext* context, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse* response) override {
    MutexLock lock(&mu_);
    for (const otlp::ResourceSpans& process : request->resource_spans()) {
      service_ = process.resource().attributes(0).value().string_value();
      for (const otlp::ScopeSpans& scope : process.scope_spans()) {
        spans_.insert(spans_.end(), scope.spans().begin(), scope.spans().end());
      }
    }
    ++num_requests_;
    changed_.NotifyAll();
    while (hangs_ && !context->IsCancelled()) {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
    response->mutable_partial_success()->set_rejected_spans(rejects_);
    return status_;
  }

  void Hang() {
    Set([this] { hangs_ = true; });
  }
  void Reject(int64_t count) {
    Set([this, count] { rejects_ = count; });
  }
  void Fail() {
    Set([this] { status_ = {grpc::StatusCode::UNAVAILABLE, "no"}; });
  }
  void WaitForRequests(int count) {
    MutexLock lock(&mu_);
    while (num_requests_ < count) changed_.Wait(&mu_);
  }
  std::vector<otlp::Span> spans() {
    MutexLock lock(&mu_);
    return spans_;
  }
  std::string service() {
    MutexLock lock(&mu_);
    return service_;
  }

 private:
  void Set(const std::function<void()>& change) {
    MutexLock lock(&mu_);
    change();
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  CondVar changed_;
  std::vector<otlp::Span> spans_ FOLIO_GUARDED_BY(mu_);
  std::string service_ FOLIO_GUARDED_BY(mu_);
  int num_requests_ FOLIO_GUARDED_BY(mu_) = 0;
  bool hangs_ FOLIO_GUARDED_BY(mu_) = false;
  int64_t rejects_ FOLIO_GUARDED_BY(mu_) = 0;
  grpc::Status status_ FOLIO_GUARDED_BY(mu_);
};

std::vector<otlp::Span> Spans(int count) {
  std::vector<otlp::Span> spans(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) spans[static_cast<size_t>(i)].set_name(std::to_string(i));
  return spans;
}

std::shared_ptr<grpc::ChannelCredentials> Open() { return server::CollectorCredentials(""); }

SpanExporter::Limits AtOnce() { return {.delay = std::chrono::milliseconds(0)}; }

// Until so many are exported or dropped.
void WaitFor(const SpanExporter& exporter, int64_t count) {
  while (exporter.num_exported() + exporter.num_dropped() < count) std::this_thread::yield();
}

TEST(SpanExporter, SpansArriveInTheirOrderAndAreCounted) {
  FakeCollector collector;
  SpanExporter exporter(collector.endpoint(), Open(), AtOnce());
  exporter.Add(Spans(3));
  WaitFor(exporter, 3);
  EXPECT_EQ(exporter.num_exported(), 3);
  EXPECT_EQ(exporter.num_dropped(), 0);
  ASSERT_EQ(collector.spans().size(), 3u);
  EXPECT_EQ(collector.spans()[2].name(), "2");
  EXPECT_EQ(collector.service(), "folio-server");
}

TEST(SpanExporter, WhatIsQueuedIsSentWhenItEnds) {
  FakeCollector collector;
  {
    SpanExporter exporter(collector.endpoint(), Open(), {.delay = std::chrono::hours(1)});
    exporter.Add(Spans(2));
  }
  EXPECT_EQ(collector.spans().size(), 2u);
}

TEST(SpanExporter, BatchesAreBounded) {
  FakeCollector collector;
  {
    SpanExporter exporter(collector.endpoint(), Open(),
                          {.max_batch_spans = 2, .delay = std::chrono::hours(1)});
    exporter.Add(Spans(5));
    collector.WaitForRequests(2);  // full ones do not wait
  }
  EXPECT_EQ(collector.spans().size(), 5u);
}

// Nobody who adds spans waits for a collector that takes none.
TEST(SpanExporter, SpansThatFindTheQueueFullAreDropped) {
  FakeCollector collector;
  collector.Hang();
  SpanExporter exporter(collector.endpoint(), Open(),
                        {.max_queued_spans = 4,
                         .delay = std::chrono::milliseconds(0),
                         .timeout = std::chrono::hours(1)});
  exporter.Add(Spans(1));
  collector.WaitForRequests(1);
  exporter.Add(Spans(3));
  EXPECT_EQ(exporter.num_dropped(), 0);
  exporter.Add(Spans(2));  // together or not at all
  EXPECT_EQ(exporter.num_dropped(), 2);
  exporter.Add(Spans(1));
  EXPECT_EQ(exporter.num_dropped(), 2);
}  // and its end does not wait for the collector

TEST(SpanExporter, WhatTheCollectorDoesNotTakeIsDropped) {
  FakeCollector collector;
  collector.Reject(2);
  SpanExporter exporter(collector.endpoint(), Open(), AtOnce());
  exporter.Add(Spans(3));
  WaitFor(exporter, 3);
  EXPECT_EQ(exporter.num_exported(), 1);
  EXPECT_EQ(exporter.num_dropped(), 2);
  collector.Fail();
  exporter.Add(Spans(3));
  WaitFor(exporter, 6);
  EXPECT_EQ(exporter.num_dropped(), 5);
}

TEST(SpanExporter, ACollectorThatIsNotThereCostsTheSpansAlone) {
  SpanExporter exporter("127.0.0.1:1", Open(), AtOnce());
  exporter.Add(Spans(3));
  WaitFor(exporter, 3);
  EXPECT_EQ(exporter.num_dropped(), 3);
}

// A collector with a certificate for so named hosts, and a file of the root that it descends from.
class SecureCollector : public ::testing::Test {
 protected:
  std::unique_ptr<FakeCollector> Named(const std::string& name) {
    const TestCertificate own = MakeCertificate(root_, "collector", {name});
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({own.key, own.cert});
    return std::make_unique<FakeCollector>(grpc::SslServerCredentials(options));
  }
  std::string FileOf(const std::string& content) { return directory_.Write("roots.pem", content); }
  // How many of three spans arrive.
  static int64_t NumExported(const FakeCollector& collector, const std::string& ca_file) {
    SpanExporter exporter(collector.endpoint(), server::CollectorCredentials(ca_file), AtOnce());
    exporter.Add(Spans(3));
    WaitFor(exporter, 3);
    return exporter.num_exported();
  }

  const TestCertificate root_ = MakeRoot("root");
  ScratchDir directory_;
};

TEST_F(SecureCollector, IsSpokenToByTls) {
  EXPECT_EQ(NumExported(*Named("IP:127.0.0.1"), FileOf(root_.cert)), 3);
}

TEST_F(SecureCollector, GetsNothingWithoutItsRoot) {
  EXPECT_EQ(NumExported(*Named("IP:127.0.0.1"), FileOf(MakeRoot("another").cert)), 0);
  EXPECT_EQ(NumExported(*Named("IP:127.0.0.1"), ""), 0);
}

TEST_F(SecureCollector, GetsNothingUnderTheNameOfAnother) {
  EXPECT_EQ(NumExported(*Named("DNS:elsewhere"), FileOf(root_.cert)), 0);
}

TEST_F(SecureCollector, RootsAreCheckedAtTheStart) {
  EXPECT_TRUE(server::CheckCollectorRoots("").ok());
  EXPECT_TRUE(server::CheckCollectorRoots(FileOf(root_.cert)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(server::CheckCollectorRoots(FileOf("no certificate"))));
  EXPECT_TRUE(absl::IsInvalidArgument(server::CheckCollectorRoots(directory_.Path("missing.pem"))));
}

class CallSpans : public ::testing::Test {
 protected:
  // Asks a server that exports, whose engine takes its time; the spans by name.
  std::map<std::string, otlp::Span> Ask(const std::string& traceparent) {
    server::ServerOptions options;
    options.otlp_endpoint = collector_.endpoint();
    TestServer server(WithMetrics(options));
    const auto stub = v1::Inference::NewStub(server.channel());
    grpc::ClientContext context;
    if (!traceparent.empty()) context.AddMetadata("traceparent", traceparent);
    v1::GenerateRequest request = testing::Ask("hello");
    request.set_request_id("mine");
    const auto reader = stub->Generate(&context, request);
    server.engine().WaitForRequest();
    v1::GenerateEvent event;
    reader->Read(&event);
    server.clock().Advance(std::chrono::milliseconds(100));
    server.engine().Emit(PrefillEvent{10, 0, 5});
    reader->Read(&event);
    server.clock().Advance(std::chrono::milliseconds(200));
    server.engine().Emit(Delta("a"));
    reader->Read(&event);
    server.clock().Advance(std::chrono::milliseconds(400));
    server.engine().Emit(Completed(1));
    while (reader->Read(&event)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
    trailer_ = TrailerOf(context, "traceparent");
    server.runner().Drain([] { return false; });
    EXPECT_GE(server.Metric("folio_spans_total{result=\"dropped\"}"), 0);
    server.Stop();
    std::map<std::string, otlp::Span> spans;
    for (const otlp::Span& span : collector_.spans()) spans[span.name()] = span;
    return spans;
  }

  FakeCollector collector_;
  std::string trailer_;
};

double Milliseconds(const otlp::Span& span) {
  return static_cast<double>(span.end_time_unix_nano() - span.start_time_unix_nano()) / 1e6;
}

TEST_F(CallSpans, ACallShowsItsPhasesInTheTraceOfItsClient) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const auto spans = Ask("00-" + trace + "-00f067aa0ba902b7-01");
  ASSERT_EQ(spans.size(), 4u);
  const otlp::Span& call = spans.at("folio.v1.Inference/Generate");
  EXPECT_EQ(absl::BytesToHexString(call.trace_id()), trace);
  EXPECT_EQ(absl::BytesToHexString(call.parent_span_id()), "00f067aa0ba902b7");
  EXPECT_EQ(trailer_, "00-" + trace + "-" + absl::BytesToHexString(call.span_id()) + "-01");
  EXPECT_EQ(call.kind(), otlp::Span::KIND_SERVER);
  EXPECT_EQ(call.status().code(), otlp::SpanStatus::CODE_UNSET);
  EXPECT_DOUBLE_EQ(Milliseconds(call), 700);
  std::map<std::string, std::string> attributes;
  for (const otlp::KeyValue& attribute : call.attributes()) {
    attributes[attribute.key()] = attribute.value().has_int_value()
                                      ? std::to_string(attribute.value().int_value())
                                      : attribute.value().string_value();
  }
  EXPECT_EQ(attributes["folio.request_id"], "mine");
  EXPECT_EQ(attributes["folio.code"], "OK");
  EXPECT_EQ(attributes["folio.strategy"], "full");
  EXPECT_EQ(attributes["folio.completion_tokens"], "1");
  for (const auto& [name, length] :
       {std::pair("queue", 100.0), std::pair("prefill", 200.0), std::pair("decode", 400.0)}) {
    const otlp::Span& phase = spans.at(name);
    EXPECT_EQ(phase.trace_id(), call.trace_id());
    EXPECT_EQ(phase.parent_span_id(), call.span_id());
    EXPECT_EQ(phase.span_id().size(), 8u);
    EXPECT_DOUBLE_EQ(Milliseconds(phase), length) << name;
  }
  EXPECT_EQ(spans.at("queue").end_time_unix_nano(), spans.at("prefill").start_time_unix_nano());
  EXPECT_EQ(spans.at("decode").end_time_unix_nano(), call.end_time_unix_nano());
}

TEST_F(CallSpans, ACallOutsideOfATraceBeginsOne) {
  const auto spans = Ask("");
  ASSERT_EQ(spans.size(), 4u);
  const otlp::Span& call = spans.at("folio.v1.Inference/Generate");
  EXPECT_EQ(call.trace_id().size(), 16u);
  EXPECT_EQ(call.parent_span_id(), "");
  EXPECT_FALSE(trailer_.empty());
}

TEST_F(CallSpans, ATraceThatIsNotSampledGetsNone) {
  EXPECT_TRUE(Ask("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").empty());
  EXPECT_FALSE(trailer_.empty());
}

}  // namespace
}  // namespace folio::testing
