// A Folio server without a model, for tests of its clients.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "folio/v1/control.grpc.pb.h"
#include "folio/v1/documents.grpc.pb.h"
#include "folio/v1/inference.grpc.pb.h"
#include "folio/v1/text.grpc.pb.h"

namespace folio::testing {

// What one Generate call sends.
struct Script {
  std::vector<v1::GenerateEvent> events;
  grpc::Status status;
  // After the events wait for the cancellation instead of ending.
  bool hang = false;
};

// Accepted, Prefill, one Delta per word of `answer` (a token each, whose id follows from the word),
// and Completed.
Script AnswerScript(const v1::GenerateRequest& request, const std::string& answer);
// Numbers the events 0, 1, 2, ... and gives them one request id.
void NumberEvents(std::vector<v1::GenerateEvent>* events);
// A status with google.rpc details.
grpc::Status RichStatus(grpc::StatusCode code, const std::string& message,
                        const std::vector<const google::protobuf::Message*>& details);

// Listens on a port of its own; stops when destroyed. A token is a word between spaces. Set the
// public members before the first call; they are only read afterwards.
class FakeServer final : private v1::Text::Service, private v1::Control::Service {
 public:
  FakeServer();
  ~FakeServer() override;

  const std::string& target() const { return target_; }
  std::shared_ptr<grpc::Channel> Connect() const;
  // What its health service says from now on; true from the beginning.
  void SetServing(bool serving);
  // Blocks until a Generate call came in, or was cancelled; false after 20 seconds.
  bool WaitForGenerate() { return Wait(generate_began_future_); }
  bool WaitForCancel() { return Wait(cancelled_future_); }
  std::vector<v1::GenerateRequest> requests() const;
  // The connections that they came over.
  std::set<std::string> peers() const;
  // "METHOD ID" of each call about a document, ID as its metadata x-document-id has it.
  std::vector<std::string> routes() const;

  // Default: the pass key in the prompt or the document, else max_new_tokens words.
  std::function<Script(const v1::GenerateRequest&)> on_generate;
  v1::ServerInfo info;

  // Uploads.
  struct Stored {
    std::string text;
    v1::Document document;
  };
  std::map<std::string, Stored> documents() const;
  void StoreDocument(const std::string& id, const std::string& text, v1::Document::State state);
  // The stream breaks with UNAVAILABLE once the document has at least so many bytes, once per
  // entry.
  std::vector<uint64_t> break_uploads_at;
  // As one that was started again: so much of the text is lost then.
  uint64_t lose_bytes = 0;
  // Never finish the prefill.
  bool hold_prefill = false;
  std::vector<v1::DocumentHeader> headers() const;
  std::vector<uint64_t> chunk_offsets() const;
  int num_deleted() const { return num_deleted_.load(); }

 private:
  class Inference;
  class Documents;

  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  // A call in each phase, and one more than are listed. Cancels "req-2" alone.
  grpc::Status ListRequests(grpc::ServerContext* context, const v1::ListRequestsRequest* request,
                            v1::ListRequestsResponse* response) override;
  grpc::Status CancelRequest(grpc::ServerContext* context, const v1::CancelRequestRequest* request,
                             v1::CancelRequestResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* response) override;
  void AddRoute(const char* method, const grpc::ServerContextBase& context);
  static bool Wait(const std::shared_future<void>& future);
  Script DefaultAnswer(const v1::GenerateRequest& request) const;

  std::promise<void> generate_began_;
  std::promise<void> cancelled_;
  std::shared_future<void> generate_began_future_ = generate_began_.get_future().share();
  std::shared_future<void> cancelled_future_ = cancelled_.get_future().share();
  std::once_flag generate_began_once_;
  std::once_flag cancelled_once_;
  std::atomic<int> num_deleted_{0};

  mutable std::mutex mutex_;  // guards the rest
  std::vector<v1::GenerateRequest> requests_;
  std::set<std::string> peers_;
  std::vector<std::string> routes_;
  std::vector<v1::DocumentHeader> headers_;
  std::vector<uint64_t> chunk_offsets_;
  std::map<std::string, Stored> documents_;
  size_t num_breaks_ = 0;

  std::unique_ptr<Inference> inference_;
  std::unique_ptr<Documents> documents_service_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace folio::testing
