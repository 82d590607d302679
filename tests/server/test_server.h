#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "folio/v1/control.grpc.pb.h"
#include "folio/v1/documents.grpc.pb.h"
#include "folio/v1/inference.grpc.pb.h"
#include "folio/v1/text.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "server/runner.h"
#include "tests/server/fake_engine.h"

namespace folio::testing {

// A time that moves only when told, or ahead of the steady clock when told.
class ManualClock {
 public:
  explicit ManualClock(bool goes_by_itself = false) : goes_by_itself_(goes_by_itself) {}

  SteadyTime now() const {
    const SteadyTime begin =
        goes_by_itself_ ? std::chrono::steady_clock::now() : SteadyTime(std::chrono::seconds(1000));
    return begin + std::chrono::milliseconds(ahead_ms_.load());
  }
  void Advance(std::chrono::milliseconds step) { ahead_ms_.fetch_add(step.count()); }

 private:
  const bool goes_by_itself_;
  std::atomic<int64_t> ahead_ms_{0};
};

// Options of a server that serves metrics on a free port.
server::ServerOptions WithMetrics(server::ServerOptions options = {});

// The server, on a free port of its own, without metrics unless WithMetrics. Its engine is a fake
// one, whose time stands still, unless a factory makes another.
class TestServer {
 public:
  enum class Model { kLoaded, kNotLoaded };
  explicit TestServer(server::ServerOptions options = {}, Model model = Model::kLoaded,
                      server::EngineFactory factory = nullptr);

  // REQUIRES: it is the fake one.
  FakeEngine& engine() { return *engine_; }
  ManualClock& clock() { return clock_; }
  server::Runner& runner() { return *runner_; }
  void Load();
  // In process; messages are handed over one by one.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::shared_ptr<grpc::Channel> TcpChannel(int port = 0) const;
  // Destroys the server; calls must have been read to their end.
  void Stop() { runner_.reset(); }
  // What the metrics port answers. REQUIRES: options made by WithMetrics.
  std::string Get(const std::string& path) const;
  // What Prometheus would read.
  std::string Metrics() const { return Get("/metrics"); }
  // The value of the series with exactly this name and labels, e.g. `folio_x{a="b"}`.
  double Metric(const std::string& series) const;

 private:
  ManualClock clock_;
  FakeEngine* engine_ = nullptr;  // owned by the runner
  std::unique_ptr<server::Runner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
};

// Metadata that came with the status of a call; empty: none of this name.
std::string TrailerOf(const grpc::ClientContext& context, const std::string& key);

// One Generate call of a client.
class Generate {
 public:
  Generate(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request,
           std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // The next event; checks that numbers are dense. An event without content after the last one.
  v1::GenerateEvent Next();
  // Reads the rest and returns the status.
  grpc::Status Finish();
  // Metadata that came with the status; empty: none of this name. REQUIRES: after Finish.
  std::string Trailer(const std::string& key) const { return TrailerOf(context_, key); }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader_;
  uint64_t next_sequence_ = 0;
};

// What the uploads of a test show that begin with an id alone: one client, on several connections.
inline constexpr char kUploadToken[] = "a secret of the test";

// One UploadDocument call of a client.
class Upload {
 public:
  explicit Upload(const std::shared_ptr<grpc::Channel>& channel);
  void Header(const v1::DocumentHeader& header);
  void Header(const std::string& id);
  void Chunk(uint64_t offset, const std::string& data);
  void FinishUpload(uint64_t total_bytes = 0);
  void HalfClose() { stream_->WritesDone(); }
  v1::UploadDocumentEvent Next();
  // The next event of a kind, others skipped.
  v1::UploadDocumentEvent NextOf(v1::UploadDocumentEvent::EventCase kind);
  grpc::Status Finish();
  std::string Trailer(const std::string& key) const { return TrailerOf(context_, key); }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::Documents::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::UploadDocumentRequest, v1::UploadDocumentEvent>>
      stream_;
};

// Uploads a whole document and waits until it is ready.
void UploadWhole(TestServer* server, const std::string& id, const std::string& text);

v1::GenerateRequest Ask(const std::string& prompt);
v1::GenerateRequest AskDocument(const std::string& id, const std::string& question);
DeltaEvent Delta(const std::string& text, int32_t token = 5);
CompletedEvent Completed(int tokens);

// The details of a status.
struct Details {
  google::rpc::ErrorInfo info;
  std::optional<google::rpc::RetryInfo> retry;
  std::optional<google::rpc::BadRequest> bad_request;
  std::optional<google::rpc::QuotaFailure> quota;

  // The field of the only violation; empty: none.
  std::string field() const;
  // Those of all violations.
  std::vector<std::string> fields() const;
};
Details DetailsOf(const grpc::Status& status);

}  // namespace folio::testing
