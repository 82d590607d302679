// A connection to a Folio server.
//
//   auto client = Client::Connect({.target = "localhost:50051"});
//   v1::GenerateRequest request;
//   request.set_prompt("Once upon a time");
//   absl::Status status = (*client)->Generate(request, {}, [](const v1::GenerateEvent& event) {
//     std::cout << event.delta().text();
//   });
//
// Errors are absl::Status with the server's details as payloads (see status.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cancel_token.h"
#include "client/document_source.h"
#include "client/upload_options.h"
#include "folio/v1/control.pb.h"
#include "folio/v1/documents.pb.h"
#include "folio/v1/inference.pb.h"
#include "folio/v1/text.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace folio::client {

// How a client shows who it is, and knows the server. Nothing set: a plaintext connection, without
// a token.
struct Credentials {
  // TLS, with the roots of a PEM file, or those of the system.
  bool tls = false;
  std::string ca_file;
  // PEM files of a certificate to show; both or none.
  std::string cert_file;
  std::string key_file;
  // A file that holds a bearer token, white space around it ignored. Read for every call, so that
  // it may be replaced.
  std::string token_file;
};

struct ConnectOptions {
  // host:port, or any other gRPC target; several servers: dns:///name:port,
  // ipv4:host:port,host:port.
  std::string target = "localhost:50051";
  absl::Duration timeout = absl::Seconds(5);
  CancelToken cancel = {};
  Credentials credentials = {};
};

struct CallOptions {
  // The server stops the work when it is over.
  absl::Duration timeout = absl::InfiniteDuration();
  CancelToken cancel = {};
};

// Thread-safe: calls may run concurrently, each blocks its own caller.
class Client {
 public:
  // Opens plaintext connections and waits until a server is ready (channel.h).
  // Errors: UNAVAILABLE if none is in time, CANCELLED.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectOptions& options);
  // Uses a channel that exists, connected or not.
  explicit Client(const std::shared_ptr<grpc::Channel>& channel);
  ~Client();

  // Runs one request. `on_event` is called on this thread for every event, in the order of the
  // server. OK means that Completed was seen. Errors: of the server; CANCELLED; DEADLINE_EXCEEDED;
  // DATA_LOSS if an event is missing.
  absl::Status Generate(const v1::GenerateRequest& request, const CallOptions& options,
                        absl::FunctionRef<void(const v1::GenerateEvent&)> on_event);

  // Runs several requests at once. `on_event` is called on this thread with the events of all
  // answers, those of each in the order of the server. OK means that each answer was seen to its
  // end, `failed` or Completed. Errors: as Generate.
  absl::Status AskMany(const v1::AskManyRequest& request, const CallOptions& options,
                       absl::FunctionRef<void(const v1::AskManyEvent&)> on_event);

  // Scores a text of any length. `next_part` gives the parts, at most 1 MiB of text or token ids
  // each, and nullopt at the end; it is called on this thread, as fast as the server scores.
  // `on_event` is called on another thread, one call at a time, all of them before the return. OK
  // means that Completed was seen. Errors: of next_part; of the server; CANCELLED.
  using NextPart = absl::FunctionRef<absl::StatusOr<std::optional<v1::ScoreRequest>>()>;
  absl::Status Score(const v1::ScoreHeader& header, NextPart next_part, const CallOptions& options,
                     absl::FunctionRef<void(const v1::ScoreEvent&)> on_event);

  // What a request or a document would take of the server's KV cache.
  absl::StatusOr<v1::EstimateResponse> Estimate(const v1::EstimateRequest& request,
                                                const CallOptions& options = {});

  // See upload_options.h.
  absl::StatusOr<v1::Document> UploadDocument(const DocumentSource& source,
                                              const UploadOptions& options,
                                              UploadEventCallback on_event);
  absl::StatusOr<v1::Document> GetDocument(const std::string& document_id,
                                           const CallOptions& options = {});
  // All documents that have all of the labels, ordered by id; reads page after page.
  using Labels = std::map<std::string, std::string>;
  absl::StatusOr<std::vector<v1::Document>> ListDocuments(const Labels& labels = {},
                                                          const CallOptions& options = {});
  absl::Status DeleteDocument(const std::string& document_id, const CallOptions& options = {});
  // Waits until the server has the document on disk.
  absl::StatusOr<v1::Document> SaveDocument(const std::string& document_id,
                                            const CallOptions& options = {});

  absl::StatusOr<v1::Document> UpdateDocument(const v1::UpdateDocumentRequest& request,
                                              const CallOptions& options = {});
  // Calls `on_change` on this thread with the document as it is, and whenever it has changed, until
  // it is ready or has failed, and with until_saved is saved or could not be. Returns the last one.
  absl::StatusOr<v1::Document> WatchDocument(
      const v1::WatchDocumentRequest& request, const CallOptions& options,
      absl::FunctionRef<void(const v1::Document&)> on_change);

  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text, bool add_bos,
                                                 const CallOptions& options = {});
  absl::StatusOr<std::string> Detokenize(const std::vector<uint32_t>& token_ids,
                                         const CallOptions& options = {});
  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {});
  absl::StatusOr<v1::ListStrategiesResponse> ListStrategies(const CallOptions& options = {});

  // Calls that run, for operators: the oldest ones, at most 1000, and how many there are.
  absl::StatusOr<v1::ListRequestsResponse> ListRequests(uint32_t max_requests,
                                                        const CallOptions& options = {});
  // Ends those with this id, and returns how many these were. Errors: NOT_FOUND.
  absl::StatusOr<uint32_t> CancelRequest(const std::string& request_id,
                                         const CallOptions& options = {});

 private:
  struct Stubs;
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace folio::client
