#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "otlp/trace_service.grpc.pb.h"

namespace folio::server {

namespace otlp = opentelemetry::proto::collector::trace::v1;

// How a collector is spoken to: by TLS where there is a PEM file of roots, which is read again when
// it changes, else without.
std::shared_ptr<grpc::ChannelCredentials> CollectorCredentials(const std::string& ca_file);
// Errors: INVALID_ARGUMENT if that file cannot be read or holds no certificate. No file: OK.
absl::Status CheckCollectorRoots(const std::string& ca_file);

// Sends spans to a collector of OpenTelemetry, in batches and on a thread of its own. Whoever adds
// spans never waits: those that find the queue full are dropped, and so are batches that the
// collector does not take. Thread-safe.
class SpanExporter {
 public:
  struct Limits {
    size_t max_queued_spans = 4096;
    size_t max_batch_spans = 512;
    // How long the first span of a batch waits for more.
    std::chrono::milliseconds delay{1000};
    std::chrono::milliseconds timeout{5000};
  };
  using Credentials = std::shared_ptr<grpc::ChannelCredentials>;
  SpanExporter(const std::string& endpoint, const Credentials& credentials)
      : SpanExporter(endpoint, credentials, Limits()) {}
  SpanExporter(const std::string& endpoint, const Credentials& credentials, const Limits& limits);
  // Sends what is queued if the collector takes it at once.
  ~SpanExporter();

  // All of one call, or none of them.
  void Add(std::vector<otlp::Span> spans) noexcept;

  int64_t num_exported() const { return exported_.load(std::memory_order_relaxed); }
  int64_t num_dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  void Main();
  // Waits for a batch; empty: there will be none.
  std::vector<otlp::Span> Take();
  void Export(std::vector<otlp::Span> batch);

  const Limits limits_;
  const std::unique_ptr<otlp::TraceService::Stub> stub_;
  std::atomic<int64_t> exported_{0};
  std::atomic<int64_t> dropped_{0};
  Mutex mu_;
  CondVar wake_;
  std::deque<otlp::Span> queue_ FOLIO_GUARDED_BY(mu_);
  grpc::ClientContext* running_ FOLIO_GUARDED_BY(mu_) = nullptr;  // of the export in flight
  bool ending_ FOLIO_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace folio::server
