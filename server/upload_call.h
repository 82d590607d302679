#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "folio/v1/documents.pb.h"
#include "server/event_pump.h"
#include "server/service_context.h"
#include "server/write_queue.h"

namespace folio::server {

// One Documents.UploadDocument stream. Each part is tokenised on the prompt pool before the next
// one is read: a fast client is held back by gRPC's flow control. Holds itself until OnDone.
class UploadCall final
    : public grpc::ServerBidiReactor<v1::UploadDocumentRequest, v1::UploadDocumentEvent>,
      public PumpTarget,
      public Uploader,
      public std::enable_shared_from_this<UploadCall> {
 public:
  static UploadCall* Start(ServiceContext* context);

  // PumpTarget.
  void Handle(Event event) override;
  void Tick(SteadyTime) override {}
  void Stop(const absl::Status& status) override;

  // Uploader, on a prompt pool thread.
  void OnTakenOver() override;

 private:
  explicit UploadCall(ServiceContext* context);

  // Reactions, on gRPC threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // On a prompt pool thread, one after the other.
  void Process();
  grpc::Status Dispatch();
  grpc::Status OnHeader(const v1::DocumentHeader& header);
  grpc::Status Open(const v1::DocumentHeader& header);
  // REQUIRES: state_->work_mu and mu_ held.
  grpc::Status TakeOwnership(bool is_new);
  grpc::Status OnChunk(const v1::DocumentChunk& chunk);
  grpc::Status CheckChunk(const v1::DocumentChunk& chunk) const;
  grpc::Status OnFinish(const v1::FinishUpload& finish);
  // The rest REQUIRES state_->work_mu held.
  bool IsOwner() const;
  absl::Status AppendTokens(std::vector<int32_t> tokens);
  // The text is bad: nothing can be appended any more.
  grpc::Status FailDocument(const std::string& field, const absl::Status& status);

  void OnProgress(const PrefillEvent& prefill);
  void SendReady();
  // The client is gone: stops the prefill unless it should go on. Posts to the prompt pool.
  void PauseUnlessDetached();

  ServiceContext* const context_;
  Engine* const engine_;  // nullptr: refused at once
  const SteadyTime arrived_;
  WriteQueue<v1::UploadDocumentEvent> writes_;
  std::shared_ptr<UploadCall> self_;
  v1::UploadDocumentRequest request_;  // owned by the read in flight or by Process

  // Pump thread only.
  bool saw_created_ = false;
  SteadyTime last_progress_{};

  mutable std::mutex mu_;
  // Written by the first Process under mu_, before any event of the document; read without it
  // afterwards.
  std::shared_ptr<UploadState> state_;
  bool detach_ = false;
  bool all_received_ = false;  // guarded by mu_; `finish` was taken
};

// The document as the API shows it.
v1::Document DescribeToClient(const Engine& engine, const UploadState& state);

}  // namespace folio::server
