#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/types/request.h"
#include "folio/v1/documents.pb.h"
#include "server/event_pump.h"
#include "server/incoming.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Documents.WatchDocument stream: looks at the document now and then, and tells what has
// changed. Holds itself until OnDone.
class WatchCall final : public grpc::ServerWriteReactor<v1::Document>,
                        public PumpTarget,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  static WatchCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                          const Incoming<v1::WatchDocumentRequest>* request);

  // PumpTarget.
  void Handle(Event) override {}
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

 private:
  explicit WatchCall(ServiceContext* context);

  // Reactions, on gRPC threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Not OK: why the document cannot be watched.
  grpc::Status Begin(const Incoming<v1::WatchDocumentRequest>& incoming);
  // Sends the document if it is another one than last time.
  void Look();

  ServiceContext* const context_;
  const SteadyTime arrived_;
  WriteQueue<v1::Document> writes_;
  // Set by Begin; then of the pump thread.
  std::string id_;
  bool until_saved_ = false;
  std::optional<DocumentHandle> handle_;
  v1::Document told_;
  SteadyTime next_look_;
  std::shared_ptr<WatchCall> self_;  // until OnDone
};

}  // namespace folio::server
