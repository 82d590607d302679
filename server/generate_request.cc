#include "server/generate_request.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/runtime/admission.h"
#include "server/request_mapping.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

using TokenIds = google::protobuf::RepeatedField<uint32_t>;

grpc::Status CheckTokenIds(const char* field, const TokenIds& ids, int vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < static_cast<uint32_t>(vocab_size)) continue;
    return BadField(absl::StrCat(field, "[", i, "]"),
                    absl::StrCat("id ", ids[i], " is not in the vocabulary of ", vocab_size));
  }
  return grpc::Status::OK;
}

grpc::Status Tokenise(const v1::GenerateRequest& request, const Engine& engine,
                      const Interrupt& interrupt, std::vector<int32_t>* tokens) {
  const bool has_document = request.has_document();
  const v1::DocumentQuery& question = request.document();
  if (request.has_prompt_token_ids() || question.has_token_ids()) {
    const char* field = has_document ? "document.token_ids.ids" : "prompt_token_ids.ids";
    const TokenIds& ids =
        has_document ? question.token_ids().ids() : request.prompt_token_ids().ids();
    if (ids.empty()) return BadField(field, "is empty");
    tokens->assign(ids.begin(), ids.end());
    return CheckTokenIds(field, ids, engine.info().shape.vocab_size);
  }
  const char* field = has_document ? "document.question" : "prompt";
  const std::string& text = has_document ? question.text() : request.prompt();
  if (text.empty()) return BadField(field, "is empty");
  const Tokenizer& tokenizer = engine.tokenizer();
  if (!has_document && tokenizer.bos_id() >= 0) tokens->push_back(tokenizer.bos_id());
  const absl::Status encoded = tokenizer.Append(text, interrupt, tokens);
  if (!encoded.ok()) return BadField(field, std::string(encoded.message()));
  if (tokens->empty()) return BadField(field, "has no tokens");
  return grpc::Status::OK;
}

grpc::Status FindDocument(const std::string& id, const Engine& engine, GenerateQuestion* question) {
  question->document = engine.GetDocument(id);
  if (!question->document.has_value()) return NoDocument(id);
  const absl::Status finished = CheckFinished(*question->document);
  if (!finished.ok()) return DocumentRefusal(*question->document, finished);
  question->spec.document = question->document->handle;
  return grpc::Status::OK;
}

}  // namespace

grpc::Status ReadGenerateRequest(const v1::GenerateRequest& request, const Engine& engine,
                                 const ServerOptions& options, const Interrupt& interrupt,
                                 GenerateQuestion* question) {
  GenerateSpec& spec = question->spec;
  grpc::Status status = FromProto(request, options, &spec);
  if (!status.ok()) return status;
  status = CheckTokenIds("stopping.stop_token_ids", request.stopping().stop_token_ids(),
                         engine.info().shape.vocab_size);
  if (!status.ok()) return status;
  status = Tokenise(request, engine, interrupt, &spec.tokens);
  if (!status.ok()) return status;
  if (request.has_document()) {
    status = FindDocument(request.document().document_id(), engine, question);
    if (!status.ok()) return status;
  }
  auto resolved = engine.ResolveAttention(
      spec.attention,
      {question->prompt_tokens() + spec.stop.max_new_tokens, request.has_document()});
  if (!resolved.ok()) return BadAttention(resolved.status(), "");
  spec.attention = *std::move(resolved);
  return grpc::Status::OK;
}

}  // namespace folio::server
