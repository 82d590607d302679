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

// Only the first one: a list may have millions.
void CheckTokenIds(const std::string& field, const TokenIds& ids, int vocab_size,
                   FieldViolations* bad) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < static_cast<uint32_t>(vocab_size)) continue;
    return bad->push_back(
        {absl::StrCat(field, "[", i, "]"),
         absl::StrCat("id ", ids[i], " is not in the vocabulary of ", vocab_size)});
  }
}

// The text or the token ids of a request, whichever it has, and the name of the field.
struct Input {
  const char* field;
  const std::string* text = nullptr;
  const TokenIds* ids = nullptr;
};

Input InputOf(const v1::GenerateRequest& request) {
  const v1::DocumentQuery& question = request.document();
  if (request.has_prompt_token_ids()) {
    return {"prompt_token_ids.ids", nullptr, &request.prompt_token_ids().ids()};
  }
  if (question.has_token_ids()) {
    return {"document.token_ids.ids", nullptr, &question.token_ids().ids()};
  }
  if (request.has_document()) return {"document.question", &question.text()};
  return {"prompt", &request.prompt()};
}

void CheckInput(const v1::GenerateRequest& request, const ServerOptions& options, int vocab_size,
                FieldViolations* bad) {
  if (request.input_case() == v1::GenerateRequest::INPUT_NOT_SET) {
    return bad->push_back({"input", "one of prompt, prompt_token_ids or document must be set"});
  }
  if (request.has_document() && !IsValidDocumentId(request.document().document_id())) {
    bad->push_back({"document.document_id", kDocumentIdRule});
  }
  const Input input = InputOf(request);
  if (input.ids != nullptr ? input.ids->empty() : input.text->empty()) {
    return bad->push_back({input.field, "is empty"});
  }
  if (input.ids != nullptr) return CheckTokenIds(input.field, *input.ids, vocab_size, bad);
  if (static_cast<int64_t>(request.prompt().size()) > options.max_inline_prompt_bytes) {
    bad->push_back({"prompt", absl::StrCat("has ", request.prompt().size(), " bytes, the limit is ",
                                           options.max_inline_prompt_bytes,
                                           "; send it with Documents.UploadDocument")});
  }
}

// All that can be said of a request without its tokens.
grpc::Status CheckFields(const v1::GenerateRequest& request, const Engine& engine,
                         const ServerOptions& options, GenerateSpec* spec) {
  const int vocab_size = engine.info().shape.vocab_size;
  FieldViolations bad;
  CheckInput(request, options, vocab_size, &bad);
  FromProto(request, options, spec, &bad);
  CheckTokenIds("stopping.stop_token_ids", request.stopping().stop_token_ids(), vocab_size, &bad);
  // What is refused of the shortest text is refused of any.
  const PositionRequest shortest = {1 + spec->stop.max_new_tokens, request.has_document()};
  const auto resolved = engine.ResolveAttention(spec->attention, shortest);
  if (!resolved.ok()) bad.push_back(BadAttention(resolved.status(), ""));
  return BadFields(bad);
}

grpc::Status Tokenise(const v1::GenerateRequest& request, const Engine& engine,
                      const Interrupt& interrupt, std::vector<int32_t>* tokens) {
  const Input input = InputOf(request);
  if (input.ids != nullptr) {
    tokens->assign(input.ids->begin(), input.ids->end());
    return grpc::Status::OK;
  }
  const Tokenizer& tokenizer = engine.tokenizer();
  if (request.has_prompt() && tokenizer.bos_id() >= 0) tokens->push_back(tokenizer.bos_id());
  const absl::Status encoded = tokenizer.Append(*input.text, interrupt, tokens);
  if (!encoded.ok()) return BadField(input.field, std::string(encoded.message()));
  if (tokens->empty()) return BadField(input.field, "has no tokens");
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

int64_t MemoryToRead(const v1::GenerateRequest& request, const Tokenizer& tokenizer) {
  const v1::DocumentQuery& question = request.document();
  const auto num_ids = static_cast<size_t>(request.prompt_token_ids().ids_size()) +
                       static_cast<size_t>(question.token_ids().ids_size());
  const size_t text_bytes = request.prompt().size() + question.text().size();
  return static_cast<int64_t>(request.SpaceUsedLong() + sizeof(int32_t) * num_ids +
                              tokenizer.encode_bytes_per_byte() * text_bytes);
}

grpc::Status ReadGenerateRequest(const v1::GenerateRequest& request, const Engine& engine,
                                 const ServerOptions& options, const Interrupt& interrupt,
                                 GenerateQuestion* question) {
  GenerateSpec& spec = question->spec;
  grpc::Status status = CheckFields(request, engine, options, &spec);
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
  if (!resolved.ok()) return BadFields({BadAttention(resolved.status(), "")});
  spec.attention = *std::move(resolved);
  return grpc::Status::OK;
}

}  // namespace folio::server
