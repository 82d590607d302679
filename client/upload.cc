#include "client/upload.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/document_id.h"
#include "client/duration.h"
#include "client/status.h"

namespace folio::client {
namespace {

using UploadStream =
    grpc::ClientReaderWriterInterface<v1::UploadDocumentRequest, v1::UploadDocumentEvent>;

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kUnaryTimeout = absl::Seconds(30);

absl::StatusOr<v1::Document> GetDocument(v1::Documents::StubInterface& documents,
                                         const std::string& document_id) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kUnaryTimeout));
  NameDocument(document_id, &context);
  v1::GetDocumentRequest request;
  request.set_document_id(document_id);
  v1::Document document;
  const grpc::Status status = documents.GetDocument(&context, request, &document);
  if (!status.ok()) return FromGrpcStatus(status);
  return document;
}

// Polls until the document has left the states in which its text or its prefill is incomplete.
//   until_ready  false: return as soon as the whole text is there
absl::StatusOr<v1::Document> AwaitDocument(v1::Documents::StubInterface& documents,
                                           const std::string& document_id, bool until_ready,
                                           const CancelToken& cancel) {
  while (true) {
    absl::StatusOr<v1::Document> document = GetDocument(documents, document_id);
    if (!document.ok()) return document;
    if (document->state() == v1::Document::STATE_FAILED) {
      return absl::FailedPreconditionError(
          absl::StrCat("document ", document_id, " failed: ", document->error()));
    }
    const bool has_text = document->state() != v1::Document::STATE_UPLOADING;
    if (document->state() == v1::Document::STATE_READY || (has_text && !until_ready)) {
      return document;
    }
    if (!WaitFor(kPollInterval, cancel)) return absl::CancelledError("cancelled");
  }
}

// One stream of an upload. The caller's thread reads, a second one writes.
class UploadAttempt {
 public:
  UploadAttempt(v1::Documents::StubInterface& documents, const DocumentSource& source,
                const UploadOptions& options)
      : documents_(documents), source_(source), options_(options) {}

  // Runs the stream to its end. Errors: as the stream's status; UNAVAILABLE if it ended too early.
  absl::StatusOr<v1::Document> Run(const std::string& document_id, const std::string& upload_token,
                                   UploadEventCallback on_event) {
    document_id_ = document_id;
    upload_token_ = upload_token;
    const std::stop_callback stop_call(options_.cancel, [this] { context_.TryCancel(); });
    NameDocument(document_id, &context_);
    stream_ = documents_.UploadDocument(&context_);
    SendHeader();
    v1::UploadDocumentEvent event;
    if (!stream_->Read(&event)) return FinishedWithout("created");
    if (!event.has_created())
      return Abandon(absl::InternalError("upload did not begin with created"));
    created_ = true;
    document_id_ = event.created().document_id();
    upload_token_ = event.created().upload_token();
    next_offset_ = event.created().next_offset();
    if (next_offset_ > source_.size_bytes()) {
      return Abandon(absl::FailedPreconditionError(
          absl::StrCat("document ", document_id_, " has ", next_offset_,
                       " bytes on the server already, more than the ", source_.size_bytes(),
                       " of the source: it is another text")));
    }
    on_event(event);
    return Transfer(on_event);
  }

  bool created() const { return created_; }
  uint64_t next_offset() const { return next_offset_; }
  const std::string& document_id() const { return document_id_; }
  const std::string& upload_token() const { return upload_token_; }

 private:
  void SendHeader() {
    v1::UploadDocumentRequest request;
    v1::DocumentHeader* header = request.mutable_header();
    header->set_document_id(document_id_);
    header->set_upload_token(upload_token_);
    header->set_display_name(options_.display_name);
    if (options_.strategy.has_value()) *header->mutable_strategy() = *options_.strategy;
    if (options_.position.has_value()) *header->mutable_position() = *options_.position;
    header->set_adapter(options_.adapter);
    header->set_format(options_.format);
    if (options_.system.has_value()) header->set_system(*options_.system);
    header->set_detach(options_.detach);
    if (options_.ttl > absl::ZeroDuration()) *header->mutable_ttl() = ToProto(options_.ttl);
    header->set_pinned(options_.pinned);
    header->mutable_labels()->insert(options_.labels.begin(), options_.labels.end());
    header->set_size_bytes(source_.size_bytes());
    stream_->Write(request);
  }

  absl::StatusOr<v1::Document> Transfer(UploadEventCallback on_event) {
    absl::StatusOr<v1::Document> ready = absl::UnavailableError("the upload stream broke");
    absl::Status write_status;
    absl::StatusOr<v1::Document> detached = absl::UnavailableError("not detached");
    std::jthread writer([&, offset = next_offset_](const CancelToken& stop) {
      write_status = WriteParts(offset);
      if (!write_status.ok()) context_.TryCancel();
      if (!write_status.ok() || !options_.detach || stop.stop_requested()) return;
      detached = AwaitDocument(documents_, document_id_, /*until_ready=*/false, stop);
      if (detached.ok()) context_.TryCancel();
    });
    v1::UploadDocumentEvent event;
    while (stream_->Read(&event)) {
      if (event.has_ack()) next_offset_ = std::max(next_offset_, event.ack().next_offset());
      if (event.has_ready()) ready = event.ready();
      on_event(event);
    }
    writer.request_stop();
    writer.join();
    const grpc::Status status = stream_->Finish();
    if (options_.cancel.stop_requested()) return absl::CancelledError("cancelled");
    if (!write_status.ok()) return write_status;
    if (detached.ok()) return detached;
    if (!status.ok()) return FromGrpcStatus(status);
    return ready;
  }

  // Sends everything from `offset` on. A broken stream is not an error here: its status tells more.
  absl::Status WriteParts(uint64_t offset) {
    v1::UploadDocumentRequest request;
    while (offset < source_.size_bytes()) {
      absl::StatusOr<std::string> data = source_.Read(offset, options_.part_bytes);
      if (!data.ok()) return data.status();
      const uint64_t num_bytes = data->size();
      request.mutable_chunk()->set_offset(offset);
      request.mutable_chunk()->set_data(*std::move(data));
      if (!stream_->Write(request)) return absl::OkStatus();
      offset += num_bytes;
    }
    request.mutable_finish()->set_total_bytes(source_.size_bytes());
    if (stream_->Write(request)) stream_->WritesDone();
    return absl::OkStatus();
  }

  absl::Status FinishedWithout(const char* event) {
    const grpc::Status status = stream_->Finish();
    if (options_.cancel.stop_requested()) return absl::CancelledError("cancelled");
    if (!status.ok()) return FromGrpcStatus(status);
    return absl::UnavailableError(absl::StrCat("the upload stream ended before ", event));
  }

  // Ends the stream from this side, for a reason that the server cannot know.
  absl::Status Abandon(absl::Status reason) {
    context_.TryCancel();
    v1::UploadDocumentEvent ignored;
    while (stream_->Read(&ignored)) {
    }
    stream_->Finish();
    return reason;
  }

  v1::Documents::StubInterface& documents_;
  const DocumentSource& source_;
  const UploadOptions& options_;
  grpc::ClientContext context_;
  std::unique_ptr<UploadStream> stream_;
  std::string document_id_;
  std::string upload_token_;
  bool created_ = false;
  uint64_t next_offset_ = 0;
};

// The document that has the id of this upload already.
absl::StatusOr<v1::Document> ReuseDocument(v1::Documents::StubInterface& documents,
                                           const std::string& document_id,
                                           const DocumentSource& source,
                                           const UploadOptions& options) {
  absl::StatusOr<v1::Document> document =
      AwaitDocument(documents, document_id, /*until_ready=*/!options.detach, options.cancel);
  if (document.ok() && document->size_bytes() != source.size_bytes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("document ", document_id, " on the server has ", document->size_bytes(),
                     " bytes, the source has ", source.size_bytes()));
  }
  return document;
}

}  // namespace

absl::StatusOr<v1::Document> RunUpload(v1::Documents::StubInterface& documents,
                                       const DocumentSource& source, const UploadOptions& options,
                                       UploadEventCallback on_event) {
  std::string document_id = options.document_id.empty() ? RandomDocumentId() : options.document_id;
  std::string upload_token = options.upload_token;
  uint64_t best_offset = 0;
  int num_failures = 0;
  bool ours = false;
  while (true) {
    UploadAttempt attempt(documents, source, options);
    absl::StatusOr<v1::Document> result = attempt.Run(document_id, upload_token, on_event);
    if (result.ok()) return result;
    // The answer to an earlier attempt may have been lost after the document was finished.
    if (absl::IsAlreadyExists(result.status()) && (ours || options.reuse_existing)) {
      return ReuseDocument(documents, document_id, source, options);
    }
    if (!absl::IsUnavailable(result.status())) return result;
    ours = ours || attempt.created();
    document_id = attempt.document_id();
    upload_token = attempt.upload_token();
    if (attempt.next_offset() > best_offset) {
      best_offset = attempt.next_offset();
      num_failures = 0;
    }
    if (++num_failures >= options.retry.max_failures) return result;
    const absl::Duration delay = RetryDelayFor(options.retry, num_failures, result.status());
    if (!WaitFor(delay, options.cancel)) return absl::CancelledError("cancelled");
  }
}

}  // namespace folio::client
