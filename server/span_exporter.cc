#include "server/span_exporter.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"
#include "engine/base/input_file.h"
#include "server/version.h"

namespace folio::server {
namespace {

// For what is under way and for what is queued when the process ends.
constexpr std::chrono::milliseconds kLastTimeout{500};
constexpr unsigned kRootsSeconds = 10;  // between looks at a file of roots
constexpr size_t kMaxRootsBytes = 4 << 20;

otlp::ExportTraceServiceRequest RequestOf(std::vector<otlp::Span> batch) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* const process = request.add_resource_spans();
  otlp::KeyValue* const service = process->mutable_resource()->add_attributes();
  service->set_key("service.name");
  service->mutable_value()->set_string_value("folio-server");
  otlp::ScopeSpans* const spans = process->add_scope_spans();
  spans->mutable_scope()->set_name("folio");
  spans->mutable_scope()->set_version(kVersion);
  for (otlp::Span& span : batch) *spans->add_spans() = std::move(span);
  return request;
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> CollectorCredentials(const std::string& ca_file) {
  if (ca_file.empty()) return grpc::InsecureChannelCredentials();
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<FileWatcherCertificateProvider>(ca_file, kRootsSeconds));
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

absl::Status CheckCollectorRoots(const std::string& ca_file) {
  if (ca_file.empty()) return absl::OkStatus();
  const auto roots = ReadSmallFile(ca_file, kMaxRootsBytes);
  if (!roots.ok()) return absl::InvalidArgumentError(roots.status().message());
  if (!absl::StrContains(*roots, "-----BEGIN CERTIFICATE-----")) {
    return absl::InvalidArgumentError(absl::StrCat(ca_file, " holds no certificate in PEM"));
  }
  return absl::OkStatus();
}

SpanExporter::SpanExporter(const std::string& endpoint, const Credentials& credentials,
                           const Limits& limits)
    : limits_(limits),
      stub_(otlp::TraceService::NewStub(grpc::CreateChannel(endpoint, credentials))),
      thread_([this] { Main(); }) {}

SpanExporter::~SpanExporter() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
    wake_.NotifyAll();
    const auto end = std::chrono::steady_clock::now() + kLastTimeout;
    while (running_ != nullptr && wake_.WaitUntil(&mu_, end)) {
    }
    if (running_ != nullptr) running_->TryCancel();
  }
  thread_.join();
}

void SpanExporter::Add(std::vector<otlp::Span> spans) noexcept {
  const auto count = static_cast<int64_t>(spans.size());
  const absl::Status added = CatchErrors([&] {
    MutexLock lock(&mu_);
    if (queue_.size() + spans.size() > limits_.max_queued_spans) {
      dropped_.fetch_add(count, std::memory_order_relaxed);
      return;
    }
    queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()),
                  std::make_move_iterator(spans.end()));
  });
  if (!added.ok()) dropped_.fetch_add(count, std::memory_order_relaxed);
  wake_.NotifyOne();
}

std::vector<otlp::Span> SpanExporter::Take() {
  MutexLock lock(&mu_);
  while (queue_.empty() && !ending_) wake_.Wait(&mu_);
  const auto full = std::chrono::steady_clock::now() + limits_.delay;
  while (queue_.size() < limits_.max_batch_spans && !ending_ && wake_.WaitUntil(&mu_, full)) {
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(queue_.size(), limits_.max_batch_spans));
  std::vector<otlp::Span> batch(std::make_move_iterator(queue_.begin()),
                                std::make_move_iterator(queue_.begin() + count));
  queue_.erase(queue_.begin(), queue_.begin() + count);
  return batch;
}

void SpanExporter::Export(std::vector<otlp::Span> batch) {
  const auto count = static_cast<int64_t>(batch.size());
  grpc::ClientContext context;
  {
    MutexLock lock(&mu_);
    context.set_deadline(std::chrono::system_clock::now() +
                         (ending_ ? kLastTimeout : limits_.timeout));
    running_ = &context;
  }
  otlp::ExportTraceServiceResponse response;
  const grpc::Status status = stub_->Export(&context, RequestOf(std::move(batch)), &response);
  MutexLock lock(&mu_);
  running_ = nullptr;
  wake_.NotifyAll();
  const int64_t refused =
      status.ok() ? std::clamp<int64_t>(response.partial_success().rejected_spans(), 0, count)
                  : count;
  exported_.fetch_add(count - refused, std::memory_order_relaxed);
  dropped_.fetch_add(refused, std::memory_order_relaxed);
  if (status.ok() || !ending_) return;
  dropped_.fetch_add(static_cast<int64_t>(queue_.size()), std::memory_order_relaxed);
  queue_.clear();
}

void SpanExporter::Main() {
  pthread_setname_np(pthread_self(), "spans");
  for (;;) {
    size_t count = 0;
    const absl::Status done = CatchErrors([&] {
      std::vector<otlp::Span> batch = Take();
      count = batch.size();
      if (count > 0) Export(std::move(batch));
    });
    // No memory for a batch: it is gone, and the next one may find some.
    if (!done.ok()) dropped_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
    MutexLock lock(&mu_);
    running_ = nullptr;
    if (ending_ && queue_.empty()) return;
  }
}

}  // namespace folio::server
