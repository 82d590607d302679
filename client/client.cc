#include "client/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "client/document_id.h"
#include "client/status.h"
#include "client/upload.h"
#include "folio/v1/control.grpc.pb.h"
#include "folio/v1/documents.grpc.pb.h"
#include "folio/v1/inference.grpc.pb.h"
#include "folio/v1/text.grpc.pb.h"

namespace folio::client {
namespace {

constexpr uint32_t kDocumentsPerPage = 1000;
constexpr absl::Duration kUnaryTimeout = absl::Minutes(1);

void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
  if (timeout == absl::InfiniteDuration()) return;
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

// The document that a request is about, by which balancers choose a server; or empty.
template <typename Request>
std::string DocumentOf(const Request& request) {
  if constexpr (requires { request.document_id(); }) return request.document_id();
  return "";
}
std::string DocumentOf(const v1::EstimateRequest& request) {
  return request.request().document().document_id();
}

// Makes one unary call: `method` of `stub`, cancellable, with a deadline, and with the document
// that it is about, if it is about one, in its metadata.
template <typename Stub, typename Request, typename Response>
absl::Status CallUnary(Stub& stub,
                       grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
                       const CallOptions& options, const Request& request, Response* response) {
  grpc::ClientContext context;
  SetDeadline(std::min(options.timeout, kUnaryTimeout), &context);
  NameDocument(DocumentOf(request), &context);
  const std::stop_callback stop_call(options.cancel, [&context] { context.TryCancel(); });
  return FromGrpcStatus((stub.*method)(&context, request, response));
}

}  // namespace

struct Client::Stubs {
  using Control = v1::Control::StubInterface;
  using Inference = v1::Inference::StubInterface;
  using Documents = v1::Documents::StubInterface;
  using Text = v1::Text::StubInterface;

  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : inference(v1::Inference::NewStub(channel)),
        documents(v1::Documents::NewStub(channel)),
        text(v1::Text::NewStub(channel)),
        control(v1::Control::NewStub(channel)) {}

  const std::unique_ptr<v1::Inference::StubInterface> inference;
  const std::unique_ptr<Documents> documents;
  const std::unique_ptr<Text> text;
  const std::unique_ptr<Control> control;
};

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ConnectOptions& options) {
  const auto channel = OpenChannel(options);
  if (!channel.ok()) return channel.status();
  return std::make_unique<Client>(*channel);
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel)
    : stubs_(std::make_unique<Stubs>(channel)) {}

Client::~Client() = default;

absl::Status Client::Generate(const v1::GenerateRequest& request, const CallOptions& options,
                              absl::FunctionRef<void(const v1::GenerateEvent&)> on_event) {
  grpc::ClientContext context;
  SetDeadline(options.timeout, &context);
  NameDocument(request.document().document_id(), &context);
  const std::stop_callback stop_call(options.cancel, [&context] { context.TryCancel(); });
  const auto stream = stubs_->inference->Generate(&context, request);
  v1::GenerateEvent event;
  uint64_t next_sequence = 0;
  bool completed = false;
  absl::Status lost;
  while (stream->Read(&event)) {
    if (!lost.ok()) continue;
    if (event.sequence() != next_sequence) {
      lost = absl::DataLossError(absl::StrCat("the stream lost events: expected number ",
                                              next_sequence, ", got ", event.sequence()));
      context.TryCancel();
      continue;
    }
    ++next_sequence;
    completed = completed || event.has_completed();
    on_event(event);
  }
  const grpc::Status status = stream->Finish();
  if (!lost.ok()) return lost;
  if (!status.ok()) return FromGrpcStatus(status);
  if (!completed) return absl::DataLossError("the stream ended without Completed");
  return absl::OkStatus();
}

absl::Status Client::AskMany(const v1::AskManyRequest& request, const CallOptions& options,
                             absl::FunctionRef<void(const v1::AskManyEvent&)> on_event) {
  grpc::ClientContext context;
  SetDeadline(options.timeout, &context);
  NameDocument(request.shared().document().document_id(), &context);
  const std::stop_callback stop_call(options.cancel, [&context] { context.TryCancel(); });
  const auto stream = stubs_->inference->AskMany(&context, request);
  const size_t num_answers =
      static_cast<size_t>(request.questions_size()) * std::max(1u, request.answers_per_question());
  v1::AskManyEvent event;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> next_sequences;
  size_t num_ended = 0;
  absl::Status lost;
  while (stream->Read(&event)) {
    if (!lost.ok()) continue;
    uint64_t& next = next_sequences[{event.question(), event.answer()}];
    if (event.has_event() && event.event().sequence() != next++) {
      lost = absl::DataLossError(absl::StrCat("the stream lost events of question ",
                                              event.question(), ", answer ", event.answer()));
      context.TryCancel();
      continue;
    }
    if (event.has_failed() || event.event().has_completed()) ++num_ended;
    on_event(event);
  }
  const grpc::Status status = stream->Finish();
  if (!lost.ok()) return lost;
  if (!status.ok()) return FromGrpcStatus(status);
  if (num_ended < num_answers) return absl::DataLossError("the stream ended without all answers");
  return absl::OkStatus();
}

absl::Status Client::Score(const v1::ScoreHeader& header, NextPart next_part,
                           const CallOptions& options,
                           absl::FunctionRef<void(const v1::ScoreEvent&)> on_event) {
  grpc::ClientContext context;
  SetDeadline(options.timeout, &context);
  const std::stop_callback stop_call(options.cancel, [&context] { context.TryCancel(); });
  const auto stream = stubs_->inference->Score(&context);
  bool completed = false;
  std::thread reader([&stream, &completed, on_event] {
    v1::ScoreEvent event;
    while (stream->Read(&event)) {
      completed = completed || event.has_completed();
      on_event(event);
    }
  });
  v1::ScoreRequest first;
  *first.mutable_header() = header;
  absl::Status failed;
  bool open = stream->Write(first);
  while (open) {
    const absl::StatusOr<std::optional<v1::ScoreRequest>> part = next_part();
    if (!part.ok()) {
      failed = part.status();
      context.TryCancel();
      break;
    }
    if (!part->has_value()) break;
    open = stream->Write(**part);
  }
  stream->WritesDone();
  reader.join();
  const grpc::Status status = stream->Finish();
  if (!failed.ok()) return failed;
  if (!status.ok()) return FromGrpcStatus(status);
  if (!completed) return absl::DataLossError("the stream ended without Completed");
  return absl::OkStatus();
}

absl::StatusOr<v1::Document> Client::UploadDocument(const DocumentSource& source,
                                                    const UploadOptions& options,
                                                    UploadEventCallback on_event) {
  return RunUpload(*stubs_->documents, source, options, on_event);
}

absl::StatusOr<v1::Document> Client::GetDocument(const std::string& document_id,
                                                 const CallOptions& options) {
  v1::GetDocumentRequest request;
  request.set_document_id(document_id);
  v1::Document document;
  const absl::Status status =
      CallUnary(*stubs_->documents, &Stubs::Documents::GetDocument, options, request, &document);
  if (!status.ok()) return status;
  return document;
}

absl::StatusOr<std::vector<v1::Document>> Client::ListDocuments(const Labels& labels,
                                                                const CallOptions& options) {
  std::vector<v1::Document> documents;
  v1::ListDocumentsRequest request;
  request.set_page_size(kDocumentsPerPage);
  request.mutable_labels()->insert(labels.begin(), labels.end());
  do {
    v1::ListDocumentsResponse response;
    const absl::Status status = CallUnary(*stubs_->documents, &Stubs::Documents::ListDocuments,
                                          options, request, &response);
    if (!status.ok()) return status;
    for (v1::Document& document : *response.mutable_documents()) {
      documents.push_back(std::move(document));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return documents;
}

absl::Status Client::DeleteDocument(const std::string& document_id, const CallOptions& options) {
  v1::DeleteDocumentRequest request;
  request.set_document_id(document_id);
  v1::DeleteDocumentResponse response;
  return CallUnary(*stubs_->documents, &Stubs::Documents::DeleteDocument, options, request,
                   &response);
}

absl::StatusOr<v1::Document> Client::SaveDocument(const std::string& document_id,
                                                  const CallOptions& options) {
  v1::SaveDocumentRequest request;
  request.set_document_id(document_id);
  v1::Document response;
  const absl::Status status =
      CallUnary(*stubs_->documents, &Stubs::Documents::SaveDocument, options, request, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::Document> Client::UpdateDocument(const v1::UpdateDocumentRequest& request,
                                                    const CallOptions& options) {
  v1::Document response;
  const absl::Status status =
      CallUnary(*stubs_->documents, &Stubs::Documents::UpdateDocument, options, request, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::Document> Client::WatchDocument(
    const v1::WatchDocumentRequest& request, const CallOptions& options,
    absl::FunctionRef<void(const v1::Document&)> on_change) {
  grpc::ClientContext context;
  SetDeadline(options.timeout, &context);
  NameDocument(request.document_id(), &context);
  const std::stop_callback stop_call(options.cancel, [&context] { context.TryCancel(); });
  const auto stream = stubs_->documents->WatchDocument(&context, request);
  v1::Document document;
  while (stream->Read(&document)) on_change(document);
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return document;
}

absl::StatusOr<v1::EstimateResponse> Client::Estimate(const v1::EstimateRequest& request,
                                                      const CallOptions& options) {
  v1::EstimateResponse response;
  const absl::Status status =
      CallUnary(*stubs_->inference, &Stubs::Inference::Estimate, options, request, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<std::vector<uint32_t>> Client::Tokenize(const std::string& text, bool add_bos,
                                                       const CallOptions& options) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_bos(add_bos);
  v1::TokenizeResponse response;
  const absl::Status status =
      CallUnary(*stubs_->text, &Stubs::Text::Tokenize, options, request, &response);
  if (!status.ok()) return status;
  return std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<uint32_t>& token_ids,
                                               const CallOptions& options) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(token_ids.begin(), token_ids.end());
  v1::DetokenizeResponse response;
  const absl::Status status =
      CallUnary(*stubs_->text, &Stubs::Text::Detokenize, options, request, &response);
  if (!status.ok()) return status;
  return std::move(*response.mutable_text());
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo(const CallOptions& options) {
  v1::ServerInfo info;
  const absl::Status status = CallUnary(*stubs_->control, &Stubs::Control::GetServerInfo, options,
                                        v1::GetServerInfoRequest(), &info);
  if (!status.ok()) return status;
  return info;
}

absl::StatusOr<v1::ListStrategiesResponse> Client::ListStrategies(const CallOptions& options) {
  v1::ListStrategiesResponse list;
  const absl::Status status = CallUnary(*stubs_->control, &Stubs::Control::ListStrategies, options,
                                        v1::ListStrategiesRequest(), &list);
  if (!status.ok()) return status;
  return list;
}

absl::StatusOr<v1::ListRequestsResponse> Client::ListRequests(uint32_t max_requests,
                                                              const CallOptions& options) {
  v1::ListRequestsRequest request;
  request.set_max_requests(max_requests);
  v1::ListRequestsResponse list;
  const absl::Status status =
      CallUnary(*stubs_->control, &Stubs::Control::ListRequests, options, request, &list);
  if (!status.ok()) return status;
  return list;
}

absl::StatusOr<uint32_t> Client::CancelRequest(const std::string& request_id,
                                               const CallOptions& options) {
  v1::CancelRequestRequest request;
  request.set_request_id(request_id);
  v1::CancelRequestResponse response;
  const absl::Status status =
      CallUnary(*stubs_->control, &Stubs::Control::CancelRequest, options, request, &response);
  if (!status.ok()) return status;
  return response.num_cancelled();
}

}  // namespace folio::client
