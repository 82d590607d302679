#include "server/generate_request.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/runtime/admission.h"
#include "engine/types/document_name.h"
#include "server/bad_words.h"
#include "server/constraint.h"
#include "server/document_upload.h"
#include "server/prompt_format.h"
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

// Only the first one, as above. Ascending by token.
void CheckBiasedTokens(const std::vector<TokenBias>& biases, int vocab_size, FieldViolations* bad) {
  for (const auto& [token, bias] : biases) {
    if (token >= 0 && token < vocab_size) continue;
    return bad->push_back({absl::StrCat("sampling.logit_bias[", static_cast<uint32_t>(token), "]"),
                           absl::StrCat("the id is not in the vocabulary of ", vocab_size)});
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
  if (options.use_generation_config) spec->sampling = engine.info().checkpoint_sampling;
  FromProto(request, options, spec, &bad);
  CheckTokenIds("stopping.stop_token_ids", request.stopping().stop_token_ids(), vocab_size, &bad);
  CheckBiasedTokens(spec->sampling.logit_bias, vocab_size, &bad);
  // What is refused of the shortest text is refused of any.
  const PositionRequest shortest = {1 + spec->stop.max_new_tokens, request.has_document()};
  const auto resolved = engine.ResolveAttention(spec->attention, shortest);
  if (bad.empty() && absl::IsNotFound(resolved.status())) return NoAdapter(resolved.status());
  if (!resolved.ok()) bad.push_back(BadAttention(resolved.status(), ""));
  return BadFields(bad);
}

// The chat format that the text of a request is in, null: none. What is wrong is added to `bad`.
const Chat* FormatOf(const v1::GenerateRequest& request, const EngineInfo& info,
                     const std::optional<DocumentInfo>& document, FieldViolations* bad) {
  if (InputOf(request).ids != nullptr) return nullptr;
  if (!request.has_document()) return ChatFor(request.format(), info, "format", bad);
  if (!document.has_value()) return nullptr;
  const bool is_raw = DocumentUpload::Of(*document)->prompt_format.empty();
  const v1::PromptFormat format = is_raw ? v1::PROMPT_FORMAT_RAW : v1::PROMPT_FORMAT_CHAT;
  if (request.format() != v1::PROMPT_FORMAT_UNSPECIFIED && request.format() != format) {
    bad->push_back(
        {"format", absl::StrCat("is ", v1::PromptFormat_Name(request.format()),
                                ", the document was uploaded as ", v1::PromptFormat_Name(format))});
  }
  return is_raw ? nullptr : info.chat.get();
}

// Fields that only a conversation has.
void CheckConversation(const v1::GenerateRequest& request, const Chat* chat, FieldViolations* bad) {
  CheckHistory(request.history(), "history", bad);
  CheckHistory(request.document().history(), "document.history", bad);
  if (std::string wrong = WhatIsWrongWithSystem(request.system()); !wrong.empty()) {
    bad->push_back({"system", std::move(wrong)});
  }
  const char* const why = chat == nullptr ? "is for texts in a chat format, this one is raw"
                          : request.has_document()
                              ? "is for prompts; a document has `document.history`, and the system "
                                "text of its upload"
                              : nullptr;
  if (why != nullptr && request.has_system()) bad->push_back({"system", why});
  if (why != nullptr && !request.history().empty()) bad->push_back({"history", why});
  if (chat == nullptr && !request.document().history().empty()) {
    bad->push_back({"document.history", "is for documents in a chat format, this one is raw"});
  }
}

grpc::Status CheckFormat(const v1::GenerateRequest& request, const EngineInfo& info,
                         const std::optional<DocumentInfo>& document, const Chat** chat) {
  FieldViolations bad;
  *chat = FormatOf(request, info, document, &bad);
  CheckConversation(request, *chat, &bad);
  if (!bad.empty() || !document.has_value() || InputOf(request).ids != nullptr) {
    return BadFields(bad);
  }
  if (IsOfFormat(DocumentUpload::Of(*document)->prompt_format, *chat)) return grpc::Status::OK;
  return ToGrpcStatus(absl::FailedPreconditionError(
      absl::StrCat("document ", Quoted(DocumentName(document->handle.id)),
                   " was uploaded in another chat format than ",
                   *chat == nullptr ? "this server has, which is none"
                                    : absl::StrCat((*chat)->format().name, " of this server"),
                   "; upload it again, or ask with token ids")));
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const v1::GenerateRequest& request,
                                                const Chat& chat, const Tokenizer& tokenizer,
                                                const Interrupt& interrupt) {
  if (request.has_document()) {
    const v1::DocumentQuery& question = request.document();
    return chat.EncodeAfterDocument(FromProto(question.history()), question.text(), tokenizer,
                                    interrupt);
  }
  const std::string& system =
      request.has_system() ? request.system() : chat.format().default_system;
  return chat.Encode(system, FromProto(request.history()), request.prompt(), tokenizer, interrupt);
}

absl::StatusOr<std::vector<int32_t>> EncodeRaw(const v1::GenerateRequest& request,
                                               const Tokenizer& tokenizer,
                                               const Interrupt& interrupt) {
  std::vector<int32_t> tokens;
  if (request.has_prompt() && tokenizer.bos_id() >= 0) tokens.push_back(tokenizer.bos_id());
  const absl::Status encoded = tokenizer.Append(*InputOf(request).text, interrupt, &tokens);
  if (!encoded.ok()) return encoded;
  return tokens;
}

grpc::Status Tokenise(const v1::GenerateRequest& request, const Engine& engine,
                      const Interrupt& interrupt, GenerateQuestion* question) {
  const Input input = InputOf(request);
  GenerateSpec& spec = question->spec;
  const Chat* chat = nullptr;
  grpc::Status bad = CheckFormat(request, engine.info(), question->document, &chat);
  if (!bad.ok()) return bad;
  if (input.ids != nullptr) {
    spec.tokens.assign(input.ids->begin(), input.ids->end());
    return grpc::Status::OK;
  }
  const Tokenizer& tokenizer = engine.tokenizer();
  auto tokens = chat != nullptr ? EncodeChat(request, *chat, tokenizer, interrupt)
                                : EncodeRaw(request, tokenizer, interrupt);
  if (!tokens.ok()) return BadField(input.field, std::string(tokens.status().message()));
  if (tokens->empty()) return BadField(input.field, "has no tokens");
  spec.tokens = *std::move(tokens);
  if (chat == nullptr) return grpc::Status::OK;
  question->format = v1::PROMPT_FORMAT_CHAT;
  // The end of the turn is one of the answer, too.
  if (!spec.stop.ignore_eos) {
    spec.stop.stop_token_ids.insert(spec.stop.stop_token_ids.end(), chat->end_tokens().begin(),
                                    chat->end_tokens().end());
  }
  return grpc::Status::OK;
}

// A question that names no adapter has the document's.
grpc::Status FindDocument(const std::string& id, bool names_adapter, const Engine& engine,
                          GenerateQuestion* question) {
  question->document = engine.GetDocument(id);
  if (!question->document.has_value()) return NoDocument(id);
  const absl::Status finished = CheckFinished(*question->document);
  if (!finished.ok()) return DocumentRefusal(*question->document, finished);
  question->spec.document = question->document->handle;
  if (!names_adapter) question->spec.attention.adapter = question->document->attention.adapter;
  return grpc::Status::OK;
}

}  // namespace

int64_t MemoryToRead(const v1::GenerateRequest& request, const Tokenizer& tokenizer) {
  const v1::DocumentQuery& question = request.document();
  const auto num_ids = static_cast<size_t>(request.prompt_token_ids().ids_size()) +
                       static_cast<size_t>(question.token_ids().ids_size());
  size_t text_bytes = request.prompt().size() + question.text().size() + request.system().size();
  for (const auto* history : {&request.history(), &question.history()}) {
    for (const v1::ChatTurn& turn : *history) {
      text_bytes += turn.question().size() + turn.answer().size();
    }
  }
  return static_cast<int64_t>(request.SpaceUsedLong() + sizeof(int32_t) * num_ids +
                              tokenizer.encode_bytes_per_byte() * text_bytes);
}

grpc::Status ReadGenerateRequest(const v1::GenerateRequest& request, const Engine& engine,
                                 const ServerOptions& options, const std::string& owner,
                                 const Interrupt& interrupt, GenerateQuestion* question) {
  GenerateSpec& spec = question->spec;
  grpc::Status status = CheckFields(request, engine, options, &spec);
  if (!status.ok()) return status;
  const absl::Status words = TokeniseBadWords(request.sampling().bad_words(), engine.tokenizer(),
                                              interrupt, &spec.sampling.bad_words);
  if (!words.ok()) return BadField("sampling.bad_words", std::string(words.message()));
  if (request.has_document()) {
    status = FindDocument(DocumentIdOf(owner, request.document().document_id()),
                          request.has_adapter(), engine, question);
    if (!status.ok()) return status;
  }
  status = Tokenise(request, engine, interrupt, question);
  if (!status.ok()) return status;
  auto resolved = engine.ResolveAttention(
      spec.attention,
      {question->prompt_tokens() + spec.stop.max_new_tokens, request.has_document()});
  if (!resolved.ok()) return BadFields({BadAttention(resolved.status(), "")});
  spec.attention = *std::move(resolved);
  return ReadConstraint(request, engine, owner, &spec);
}

}  // namespace folio::server
