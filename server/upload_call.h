#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>

#include "folio/v1/documents.pb.h"
#include "server/event_pump.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Documents.UploadDocument stream. Each part is tokenised on the prompt pool before the next one is read:
// a fast client is held back by gRPC's flow control. Holds itself until OnDone.
class UploadCall final
    : public grpc::ServerBidiReactor<v1::UploadDocumentRequest, v1::UploadDocumentEvent>,
      public PumpTarget,
      public std::enable_shared_from_this<UploadCall> {
 public:
  static UploadCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc);

  // PumpTarget, on the pump thread.
  void Handle(Event event) override;
  void Tick(SteadyTime) override {}

 private:
  explicit UploadCall(ServiceContext* context);

  // Reactions, on gRPC threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // On a prompt pool thread.
  void Process();
  grpc::Status Dispatch();
  grpc::Status OnHeader(const v1::DocumentHeader& header);
  grpc::Status OnChunk(const v1::DocumentChunk& chunk);
  grpc::Status OnFinish(const v1::FinishUpload& finish);
  grpc::Status AppendTokens(std::vector<int32_t> tokens);
  // Fails if a later connection has taken the upload over. REQUIRES: upload_->mu held.
  grpc::Status CheckOwner() const;

  void Send(v1::UploadDocumentEvent event);
  void SendReady();
  void Detach();
  void FinishWith(const grpc::Status& status);

  ServiceContext* const context_;
  const SteadyTime arrived_ = std::chrono::steady_clock::now();
  WriteQueue<v1::UploadDocumentEvent> writes_;
  std::shared_ptr<UploadCall> self_;
  v1::UploadDocumentRequest request_;  // owned by the read in flight or by Process

  // Written by the pool thread before `opened_`, read afterwards.
  std::shared_ptr<UploadState> upload_;
  Engine* engine_ = nullptr;
  uint64_t owner_ = 0;
  bool detach_ = false;

  std::mutex mu_;
  bool opened_ = false;             // guarded by mu_
  bool upload_finished_ = false;    // guarded by mu_
  bool gone_ = false;               // guarded by mu_
  std::string final_code_ = "OK";   // guarded by mu_
};

// The document as Get and List show it. REQUIRES: upload is not null.
v1::Document DescribeDocument(const DocumentInfo& info, const UploadState& upload);

}  // namespace folio::server
