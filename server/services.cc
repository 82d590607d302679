#include "server/services.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/generate_call.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"
#include "server/upload_call.h"
#include "server/version.h"

namespace folio::server {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;

grpc::ServerUnaryReactor* Done(ServiceContext* context, grpc::CallbackServerContext* rpc,
                               const char* method, const grpc::Status& status) {
  context->metrics->OnRpc(method, status.ok() ? "OK" : absl::StrCat(status.error_code()));
  grpc::ServerUnaryReactor* reactor = rpc->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// Runs `work` on the prompt pool and finishes the call with its status.
grpc::ServerUnaryReactor* RunOnPool(ServiceContext* context, grpc::CallbackServerContext* rpc,
                                    const char* method,
                                    std::function<grpc::Status(Engine*)> work) {
  grpc::ServerUnaryReactor* reactor = rpc->DefaultReactor();
  context->pool.Post([context, reactor, method, work = std::move(work)] {
    const auto engine = context->engine();
    const grpc::Status status = engine.ok() ? work(*engine) : ToGrpcStatus(engine.status());
    context->metrics->OnRpc(method, status.ok() ? "OK" : absl::StrCat(status.error_code()));
    reactor->Finish(status);
  });
  return reactor;
}

grpc::Status NoDocument(const std::string& id) {
  return ToGrpcStatus(absl::NotFoundError(absl::StrCat("no document '", id, "'")));
}

v1::Document Describe(const DocumentInfo& info, UploadState* upload) {
  v1::Document document = DescribeDocument(info, *upload);
  std::lock_guard<std::mutex> lock(upload->mu);
  document.set_size_bytes(upload->next_offset);
  return document;
}

void FillModel(const EngineInfo& info, v1::ModelInfo* model) {
  model->set_name(info.model_name);
  model->set_architecture(info.architecture);
  model->set_num_parameters(info.num_parameters);
  model->set_weight_dtype(info.weight_dtype);
  model->set_synthetic(info.synthetic);
  model->set_max_position_embeddings(info.shape.trained_length);
  model->set_vocab_size(info.shape.vocab_size);
  model->set_num_layers(info.shape.num_layers);
  model->set_num_heads(info.shape.num_heads);
  model->set_num_kv_heads(info.shape.num_kv_heads);
  model->set_head_dim(info.shape.head_dim);
}

void FillLimits(const ServerOptions& options, v1::ServerLimits* limits) {
  limits->set_max_receive_message_bytes(options.max_receive_message_bytes);
  limits->set_max_inline_prompt_bytes(options.max_inline_prompt_bytes);
  limits->set_max_document_bytes(options.max_document_bytes);
  limits->set_max_context_tokens(options.engine.max_context_tokens);
  limits->set_max_new_tokens(options.max_new_tokens);
  limits->set_max_queued_requests(options.engine.max_queued_requests);
  limits->set_max_running_requests(options.engine.max_running_requests);
  limits->set_max_documents(options.max_documents);
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateEvent>* InferenceService::Generate(
    grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) {
  return GenerateCall::Start(context_, rpc, request);
}

grpc::ServerBidiReactor<v1::UploadDocumentRequest, v1::UploadDocumentEvent>*
DocumentsService::UploadDocument(grpc::CallbackServerContext* rpc) {
  return UploadCall::Start(context_, rpc);
}

grpc::ServerUnaryReactor* DocumentsService::GetDocument(grpc::CallbackServerContext* rpc,
                                                        const v1::GetDocumentRequest* request,
                                                        v1::Document* response) {
  const auto engine = context_->engine();
  if (!engine.ok()) return Done(context_, rpc, "GetDocument", ToGrpcStatus(engine.status()));
  const auto info = (*engine)->GetDocument(request->document_id());
  const auto upload = context_->documents.Find(request->document_id());
  if (!info.has_value() || upload == nullptr) {
    return Done(context_, rpc, "GetDocument", NoDocument(request->document_id()));
  }
  *response = Describe(*info, upload.get());
  return Done(context_, rpc, "GetDocument", grpc::Status::OK);
}

grpc::ServerUnaryReactor* DocumentsService::ListDocuments(grpc::CallbackServerContext* rpc,
                                                          const v1::ListDocumentsRequest* request,
                                                          v1::ListDocumentsResponse* response) {
  const auto engine = context_->engine();
  if (!engine.ok()) return Done(context_, rpc, "ListDocuments", ToGrpcStatus(engine.status()));
  if (request->page_size() > kMaxPage) {
    return Done(context_, rpc, "ListDocuments", BadField("page_size", "must be at most 1000"));
  }
  const uint32_t page = request->page_size() == 0 ? kDefaultPage : request->page_size();
  std::string last;
  for (const DocumentInfo& info : (*engine)->ListDocuments()) {
    // A page token is the last id of the page before.
    if (!request->page_token().empty() && info.id <= request->page_token()) continue;
    const auto upload = context_->documents.Find(info.id);
    if (upload == nullptr) continue;
    if (static_cast<uint32_t>(response->documents_size()) == page) {
      response->set_next_page_token(last);
      break;
    }
    *response->add_documents() = Describe(info, upload.get());
    last = info.id;
  }
  return Done(context_, rpc, "ListDocuments", grpc::Status::OK);
}

grpc::ServerUnaryReactor* DocumentsService::DeleteDocument(
    grpc::CallbackServerContext* rpc, const v1::DeleteDocumentRequest* request,
    v1::DeleteDocumentResponse*) {
  const auto engine = context_->engine();
  if (!engine.ok()) return Done(context_, rpc, "DeleteDocument", ToGrpcStatus(engine.status()));
  const absl::Status deleted = (*engine)->DeleteDocument(request->document_id());
  if (deleted.ok()) context_->documents.Erase(request->document_id());
  return Done(context_, rpc, "DeleteDocument", ToGrpcStatus(deleted));
}

grpc::ServerUnaryReactor* TextService::Tokenize(grpc::CallbackServerContext* rpc,
                                                const v1::TokenizeRequest* request,
                                                v1::TokenizeResponse* response) {
  return RunOnPool(context_, rpc, "Tokenize", [request, response](Engine* engine) {
    const Tokenizer& tokenizer = engine->tokenizer();
    const auto ids = tokenizer.Encode(request->text());
    if (!ids.ok()) return ToGrpcStatus(ids.status());
    if (request->add_bos() && tokenizer.bos_id() >= 0) {
      response->add_token_ids(static_cast<uint32_t>(tokenizer.bos_id()));
    }
    for (int32_t id : *ids) response->add_token_ids(static_cast<uint32_t>(id));
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* TextService::Detokenize(grpc::CallbackServerContext* rpc,
                                                  const v1::DetokenizeRequest* request,
                                                  v1::DetokenizeResponse* response) {
  return RunOnPool(context_, rpc, "Detokenize", [request, response](Engine* engine) {
    std::vector<int32_t> ids;
    for (uint32_t id : request->token_ids()) {
      if (id >= static_cast<uint32_t>(engine->tokenizer().vocab_size())) {
        return BadField("token_ids", absl::StrCat("id ", id, " is not in the vocabulary of ",
                                                  engine->tokenizer().vocab_size()));
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    const auto text = engine->tokenizer().Decode(ids);
    if (!text.ok()) return ToGrpcStatus(text.status());
    response->set_text(*text);
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* rpc,
                                                        const v1::GetServerInfoRequest*,
                                                        v1::ServerInfo* response) {
  const auto engine = context_->engine();
  if (!engine.ok()) return Done(context_, rpc, "GetServerInfo", ToGrpcStatus(engine.status()));
  const EngineInfo& info = (*engine)->info();
  const EngineStats stats = (*engine)->Stats();
  response->set_version(kVersion);
  FillModel(info, response->mutable_model());
  FillLimits(context_->options, response->mutable_limits());
  response->set_backend(info.backend);
  response->set_num_threads(info.num_threads);
  response->set_page_tokens(info.page_tokens);
  response->set_kv_dtype(info.kv_dtype);
  *response->mutable_default_strategy() = ToProto(info.default_strategy);
  for (const std::string& name : info.strategies) response->add_strategies(name);
  v1::KvUsage* kv = response->add_kv();
  kv->set_tier("device");
  kv->set_used_bytes(stats.kv_used_bytes + stats.summary_used_bytes);
  kv->set_capacity_bytes(stats.kv_capacity_bytes);
  response->set_num_requests_running(stats.running);
  response->set_num_requests_waiting(stats.waiting);
  response->set_num_documents(context_->documents.size());
  return Done(context_, rpc, "GetServerInfo", grpc::Status::OK);
}

}  // namespace folio::server
