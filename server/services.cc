#include "server/services.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/answer_call.h"
#include "server/document_calls.h"
#include "server/estimate_call.h"
#include "server/methods.h"
#include "server/operator_calls.h"
#include "server/request_mapping.h"
#include "server/score_call.h"
#include "server/status_mapping.h"
#include "server/unary_call.h"
#include "server/upload_call.h"
#include "server/version.h"
#include "server/watch_call.h"

namespace folio::server {
namespace {

constexpr size_t kMaxTextBytes = 4 << 20;

// Bytes of the answer to Tokenize, and of it on the wire, per byte of text: at worst each is a
// token. Detokenize: per token, whose text is a few bytes long.
constexpr size_t kTokenizeAnswer = 8;
constexpr int64_t kDetokenizeCost = 32;

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
  model->set_sliding_window(info.sliding_window);
}

void FillLimits(const ServerOptions& options, v1::ServerLimits* limits) {
  limits->set_max_receive_message_bytes(options.edge.connection.max_message_bytes);
  limits->set_max_inline_prompt_bytes(options.max_inline_prompt_bytes);
  limits->set_max_document_bytes(options.max_document_bytes);
  limits->set_max_context_tokens(options.engine.max_context_tokens);
  limits->set_max_new_tokens(options.max_new_tokens);
  limits->set_max_queued_requests(options.engine.max_queued_requests);
  limits->set_max_running_requests(options.engine.max_running_requests);
  limits->set_max_documents(options.engine.max_documents);
}

void FillInfo(const ServiceContext& context, const Caller& caller, v1::ServerInfo* response) {
  const EngineInfo& info = context.engine()->info();
  const EngineStats stats = context.engine()->Stats();
  response->set_version(kVersion);
  response->set_tenant(caller.owner);
  response->set_admin(caller.is_admin);
  FillModel(info, response->mutable_model());
  FillLimits(context.options, response->mutable_limits());
  response->set_backend(info.backend);
  response->set_num_threads(info.num_threads);
  response->set_page_tokens(info.page_tokens);
  response->set_kv_dtype(info.kv_dtype);
  if (info.chat != nullptr) response->set_chat_format(info.chat->format().name);
  response->set_chat_note(info.chat_note);
  *response->mutable_default_strategy() = ToProto(info.default_attention.strategy);
  *response->mutable_default_position() = ToProto(info.default_attention.position);
  for (const AdapterInfo& adapter : info.adapters) {
    v1::AdapterInfo* to = response->add_adapters();
    to->set_name(adapter.name);
    to->set_rank(static_cast<uint32_t>(adapter.rank));
    for (const std::string& module : adapter.target_modules) to->add_target_modules(module);
    to->set_memory_bytes(static_cast<uint64_t>(adapter.bytes));
  }
  for (const MethodInfo& method : info.catalogue.strategies) {
    if (!method.refused) response->add_strategies(method.name);
  }
  v1::KvUsage* kv = response->add_kv();
  kv->set_tier("device");
  kv->set_used_bytes(stats.kv_used_bytes + stats.summary_used_bytes);
  kv->set_capacity_bytes(stats.kv_capacity_bytes);
  if (stats.home != Tier::kDevice) {
    kv->set_capacity_bytes(stats.kv_memory_bytes);
    v1::KvUsage* home = response->add_kv();
    home->set_tier(stats.home == Tier::kHost ? "host" : "disk");
    home->set_used_bytes(stats.home_used_bytes);
    home->set_capacity_bytes(stats.kv_capacity_bytes);
  }
  response->set_num_requests_running(stats.running);
  response->set_num_requests_waiting(stats.queued());
  response->set_num_documents(static_cast<uint32_t>(NumDocumentsOf(*context.engine(), caller)));
}

grpc::ServerUnaryReactor* RunTokenize(ServiceContext* context, UnaryCall* call,
                                      const v1::TokenizeRequest& request,
                                      v1::TokenizeResponse* response) {
  const size_t bytes = request.text().size();
  if (bytes > kMaxTextBytes) {
    return call->End(
        BadField("text", absl::StrCat("has ", bytes, " bytes, the limit is ", kMaxTextBytes)));
  }
  const Tokenizer& tokenizer = context->engine()->tokenizer();
  const size_t cost = 1 + kTokenizeAnswer + tokenizer.encode_bytes_per_byte();
  const auto work = [&tokenizer, &request, response](const UnaryCall& running) {
    const auto ids = tokenizer.Encode(request.text(), [&] { return running.CheckWanted(); });
    if (absl::IsCancelled(ids.status())) return ToGrpcStatus(ids.status());
    if (!ids.ok()) return BadField("text", std::string(ids.status().message()));
    if (request.add_bos() && tokenizer.bos_id() >= 0) {
      response->add_token_ids(static_cast<uint32_t>(tokenizer.bos_id()));
    }
    response->mutable_token_ids()->Reserve(static_cast<int>(ids->size()) + 1);
    for (int32_t id : *ids) response->add_token_ids(static_cast<uint32_t>(id));
    return grpc::Status::OK;
  };
  return call->EndOnPool(bytes, static_cast<int64_t>(cost * bytes), work);
}

grpc::ServerUnaryReactor* RunDetokenize(ServiceContext* context, UnaryCall* call,
                                        const v1::DetokenizeRequest& request,
                                        v1::DetokenizeResponse* response) {
  const auto num_ids = static_cast<size_t>(request.token_ids_size());
  const auto work = [context, &request, response](const UnaryCall&) {
    const Tokenizer& tokenizer = context->engine()->tokenizer();
    const auto vocab = static_cast<uint32_t>(tokenizer.vocab_size());
    for (int i = 0; i < request.token_ids_size(); ++i) {
      if (request.token_ids(i) < vocab) continue;
      return BadField(
          absl::StrCat("token_ids[", i, "]"),
          absl::StrCat("id ", request.token_ids(i), " is not in the vocabulary of ", vocab));
    }
    const auto text = tokenizer.Decode(
        std::vector<int32_t>(request.token_ids().begin(), request.token_ids().end()));
    if (!text.ok()) return BadField("token_ids", std::string(text.status().message()));
    response->set_text(*text);
    return grpc::Status::OK;
  };
  return call->EndOnPool(sizeof(uint32_t) * num_ids,
                         kDetokenizeCost * static_cast<int64_t>(num_ids), work);
}

grpc::ServerUnaryReactor* RunGetServerInfo(ServiceContext* context, UnaryCall* call,
                                           const v1::GetServerInfoRequest&,
                                           v1::ServerInfo* response) {
  FillInfo(*context, call->caller(), response);
  return call->End(grpc::Status::OK);
}

grpc::ServerUnaryReactor* RunListStrategies(ServiceContext* context, UnaryCall* call,
                                            const v1::ListStrategiesRequest&,
                                            v1::ListStrategiesResponse* response) {
  ToProto(context->engine()->info().catalogue, response);
  return call->End(grpc::Status::OK);
}

}  // namespace

InferenceService::InferenceService(ServiceContext* context) {
  MarkMethodCallback(IndexOf("folio.v1.Inference.Generate"),
                     ServerStreamingMethod<GenerateCall, v1::GenerateRequest, v1::GenerateEvent>(
                         context, "Generate"));
  MarkMethodCallback(
      IndexOf("folio.v1.Inference.AskMany"),
      ServerStreamingMethod<AskManyCall, v1::AskManyRequest, v1::AskManyEvent>(context, "AskMany"));
  MarkMethodCallback(IndexOf("folio.v1.Inference.Score"),
                     BidiMethod<ScoreCall, v1::ScoreRequest, v1::ScoreEvent>(context, "Score"));
  MarkMethodCallback(IndexOf("folio.v1.Inference.Estimate"),
                     UnaryMethod(context, "Estimate", RunEstimate));
}

DocumentsService::DocumentsService(ServiceContext* context) {
  MarkMethodCallback(IndexOf("folio.v1.Documents.UploadDocument"),
                     BidiMethod<UploadCall, v1::UploadDocumentRequest, v1::UploadDocumentEvent>(
                         context, "UploadDocument"));
  MarkMethodCallback(IndexOf("folio.v1.Documents.GetDocument"),
                     UnaryMethod(context, "GetDocument", RunGetDocument));
  MarkMethodCallback(IndexOf("folio.v1.Documents.ListDocuments"),
                     UnaryMethod(context, "ListDocuments", RunListDocuments));
  MarkMethodCallback(IndexOf("folio.v1.Documents.DeleteDocument"),
                     UnaryMethod(context, "DeleteDocument", RunDeleteDocument));
  MarkMethodCallback(IndexOf("folio.v1.Documents.SaveDocument"),
                     UnaryMethod(context, "SaveDocument", RunSaveDocument));
  MarkMethodCallback(IndexOf("folio.v1.Documents.UpdateDocument"),
                     UnaryMethod(context, "UpdateDocument", RunUpdateDocument));
  MarkMethodCallback(IndexOf("folio.v1.Documents.WatchDocument"),
                     ServerStreamingMethod<WatchCall, v1::WatchDocumentRequest, v1::Document>(
                         context, "WatchDocument"));
}

TextService::TextService(ServiceContext* context) {
  MarkMethodCallback(IndexOf("folio.v1.Text.Tokenize"),
                     UnaryMethod(context, "Tokenize", RunTokenize));
  MarkMethodCallback(IndexOf("folio.v1.Text.Detokenize"),
                     UnaryMethod(context, "Detokenize", RunDetokenize));
}

ControlService::ControlService(ServiceContext* context) {
  MarkMethodCallback(IndexOf("folio.v1.Control.GetServerInfo"),
                     UnaryMethod(context, "GetServerInfo", RunGetServerInfo));
  MarkMethodCallback(IndexOf("folio.v1.Control.ListStrategies"),
                     UnaryMethod(context, "ListStrategies", RunListStrategies));
  MarkMethodCallback(IndexOf("folio.v1.Control.ListRequests"),
                     UnaryMethod(context, "ListRequests", RunListRequests));
  MarkMethodCallback(IndexOf("folio.v1.Control.CancelRequest"),
                     UnaryMethod(context, "CancelRequest", RunCancelRequest));
}

}  // namespace folio::server
