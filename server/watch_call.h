#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "engine/types/request.h"
#include "folio/v1/documents.pb.h"
#include "server/auth/caller.h"
#include "server/document_watches.h"
#include "server/incoming.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Documents.WatchDocument stream: tells what has changed of the document when it has, of mere
// progress not more often than kInterval. Holds itself until OnDone.
class WatchCall final : public grpc::ServerWriteReactor<v1::Document>,
                        public DocumentWatcher,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  static constexpr std::chrono::milliseconds kInterval{100};

  static WatchCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller,
                          const Incoming<v1::WatchDocumentRequest>* request);

  // DocumentWatcher.
  void OnDocument(const std::optional<DocumentInfo>& document, SteadyTime now) override;
  void Handle(Event) override {}
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

 private:
  WatchCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller);

  // Reactions, on gRPC threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Not OK: why the document cannot be watched.
  grpc::Status Begin(const Incoming<v1::WatchDocumentRequest>& incoming);
  // Sends the document if it is another one than last time.
  void Tell(const std::optional<DocumentInfo>& info, SteadyTime now);

  ServiceContext* const context_;
  const Caller caller_;
  const SteadyTime arrived_;
  const TraceContext trace_;
  WriteQueue<v1::Document> writes_;
  // Set by Begin; then of the pump thread.
  std::string id_;
  bool until_saved_ = false;
  std::optional<DocumentHandle> handle_;
  v1::Document told_;
  std::optional<DocumentState> told_state_;
  SteadyTime next_progress_;
  bool has_progress_ = false;        // that was not told
  std::shared_ptr<WatchCall> self_;  // until OnDone
};

}  // namespace folio::server
