#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "folio/v1/documents.pb.h"
#include "server/auth/caller.h"
#include "server/call_end.h"
#include "server/call_registry.h"
#include "server/document_upload.h"
#include "server/event_pump.h"
#include "server/incoming.h"
#include "server/service_context.h"
#include "server/upload_header.h"
#include "server/write_queue.h"

namespace folio::server {

// One Documents.UploadDocument stream. Each part is tokenised on the prompt pool before the next
// one is read: a fast client is held back by gRPC's flow control. Holds itself until OnDone.
class UploadCall final
    : public grpc::ServerBidiReactor<Incoming<v1::UploadDocumentRequest>, v1::UploadDocumentEvent>,
      public PumpTarget,
      public Uploader,
      public std::enable_shared_from_this<UploadCall> {
 public:
  static UploadCall* Start(ServiceContext* context, grpc::CallbackServerContext* rpc,
                           Caller caller);

  // PumpTarget.
  void Handle(Event event) override;
  void Tick(SteadyTime now) override;
  void Stop(const absl::Status& status) override;

  // Uploader, on a prompt pool thread.
  void OnTakenOver() override;

 private:
  UploadCall(ServiceContext* context, grpc::CallbackServerContext* rpc, Caller caller);

  // Reactions, on gRPC threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnPart();
  void OnHalfClose();

  // On a prompt pool thread, one after the other.
  void Process();
  // Reads the next part. While the cache has no room for what came before, that waits for a tick,
  // and gRPC's flow control holds the client back.
  void ReadNext();
  void EndUpload(const grpc::Status& status);
  // The rest of Process has thrown.
  void OnProcessFailed(const absl::Status& status);
  grpc::Status Dispatch();
  grpc::Status OnHeader(const v1::DocumentHeader& header);
  grpc::Status Open(const v1::DocumentHeader& header, const UploadSpec& spec);
  // The document of this id, or a new one in the place of one that has failed.
  absl::StatusOr<DocumentInfo> OpenDocument(const std::string& id, const AttentionSpec& attention,
                                            const std::shared_ptr<DocumentUpload>& fresh,
                                            const Payer& payer);
  void SetAttributes(const DocumentHandle& handle, const v1::DocumentHeader& header);
  grpc::Status OnChunk(const v1::DocumentChunk& chunk);
  grpc::Status CheckChunk(const v1::DocumentChunk& chunk) const;
  grpc::Status OnFinish(const v1::FinishUpload& finish);
  // The document that the header has named; unset once it is gone.
  std::optional<DocumentInfo> FindDocument() const;
  // Why the document takes no more of the upload, if so; `request` is what was sent.
  grpc::Status CheckUploading(const std::string& request) const;
  // Hands tokens to the engine. Bad text, or too much of it, fails the document.
  // Those of the text so far, up to `text_bytes`.
  grpc::Status Append(const std::string& field, absl::StatusOr<std::vector<int32_t>> tokens,
                      uint64_t text_bytes);
  // The text that came with `field` cannot become the document's. Ends the call, too.
  grpc::Status FailDocument(const std::string& field, const absl::Status& status);

  // Whose text is not whole has no time to wait for the rest.
  void EndForDrain();
  void OnProgress(const PrefillEvent& prefill);
  void SendReady();
  // The client is gone: stops the prefill, unless the text is complete or it should go on anyway.
  // Posts to the prompt pool.
  void PauseUnlessDetached();

  ServiceContext* const context_;
  grpc::CallbackServerContext* const rpc_;  // valid until OnDone
  const Caller caller_;
  const SteadyTime arrived_;
  WriteQueue<v1::UploadDocumentEvent> writes_;
  std::shared_ptr<UploadCall> self_;
  std::unique_ptr<RunningCall> listed_;
  CallEnd end_;  // written when the stream is finished, read by OnDone
  // Both owned by the read in flight or by Process.
  Incoming<v1::UploadDocumentRequest> request_;
  MemoryBudget::Share memory_;  // of the request and its tokens

  // What the header has named.
  struct Subject {
    DocumentHandle document;
    std::shared_ptr<DocumentUpload> upload;
    std::string strategy;
    bool detach = false;
  };

  // Pump thread only.
  bool saw_created_ = false;
  int64_t num_known_tokens_ = 0;
  int64_t num_computed_tokens_ = 0;
  SteadyTime last_progress_{};

  // The next part is read when there is room for the last one.
  std::atomic<bool> waits_for_room_{false};

  mutable Mutex mu_;
  // Written once by Process, under mu_ and before any event of the document; Process and Handle
  // read it without.
  std::shared_ptr<const Subject> subject_;
  bool all_received_ FOLIO_GUARDED_BY(mu_) = false;  // `finish` was taken
  bool says_why_ FOLIO_GUARDED_BY(mu_) = false;      // Append ends the call, not the engine
};

}  // namespace folio::server
