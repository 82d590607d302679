#include "server/upload_header.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/types/document_name.h"
#include "server/document_attributes.h"
#include "server/request_mapping.h"

namespace folio::server {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 128;

void CheckSystem(const v1::DocumentHeader& header, const Chat* chat, FieldViolations* bad) {
  if (std::string wrong = WhatIsWrongWithSystem(header.system()); !wrong.empty()) {
    bad->push_back({"header.system", std::move(wrong)});
  }
  if (chat != nullptr || header.system().empty() || !bad->empty()) return;
  bad->push_back({"header.system", "is for documents in a chat format, this one is raw"});
}

FieldViolations CheckFields(const v1::DocumentHeader& header) {
  FieldViolations bad;
  if (!header.document_id().empty() && !IsValidDocumentId(header.document_id())) {
    bad.push_back({"header.document_id", kDocumentIdRule});
  }
  if (const size_t bytes = header.display_name().size(); bytes > kMaxNameBytes) {
    bad.push_back({"header.display_name",
                   absl::StrCat("has ", bytes, " bytes, the limit is ", kMaxNameBytes)});
  }
  CheckPriority(header.priority(), "header.priority", &bad);
  CheckTtl(header.ttl(), "header.ttl", &bad);
  CheckLabels(header.labels(), "header.labels", &bad);
  const size_t token_bytes = header.upload_token().size();
  if (token_bytes != 0 && (token_bytes < kMinTokenBytes || token_bytes > kMaxTokenBytes)) {
    bad.push_back({"header.upload_token", absl::StrCat("has ", token_bytes, " bytes, must have ",
                                                       kMinTokenBytes, " to ", kMaxTokenBytes)});
  }
  return bad;
}

}  // namespace

grpc::Status ReadUploadHeader(const v1::DocumentHeader& header, const ServiceContext& context,
                              const std::string& owner, UploadSpec* spec) {
  const Engine& engine = *context.engine();
  FieldViolations bad = CheckFields(header);
  const Chat* const chat = ChatFor(header.format(), engine.info(), "header.format", &bad);
  CheckSystem(header, chat, &bad);
  AttentionSpec wanted = FromProto(header.strategy(), header.position());
  wanted.adapter.name = header.adapter();
  auto resolved = engine.ResolveAttention(wanted, {});
  if (bad.empty() && absl::IsNotFound(resolved.status())) return NoAdapter(resolved.status());
  if (!resolved.ok()) bad.push_back(BadAttention(resolved.status(), "header."));
  if (!bad.empty()) return BadFields(bad);
  spec->attention = *std::move(resolved);
  auto lead =
      LeadOfDocument(chat, header.has_system() ? header.system() : context.options.document_system,
                     engine.tokenizer());
  if (!lead.ok()) return ToGrpcStatus(lead.status());
  spec->lead = *std::move(lead);
  if (header.size_bytes() == 0) return grpc::Status::OK;
  grpc::Status too_large = CheckDocumentBytes(header.size_bytes(), context.options);
  if (!too_large.ok()) return too_large;
  // An upload that goes on may leave out the strategy that it was begun with.
  if (engine.GetDocument(DocumentIdOf(owner, header.document_id())).has_value())
    return grpc::Status::OK;
  const absl::Status fits =
      engine.CheckDocumentSize(spec->attention, static_cast<int64_t>(header.size_bytes()));
  if (!absl::IsInvalidArgument(fits)) return context.Refusal(fits);
  return BadField("header.size_bytes", std::string(fits.message()));
}

grpc::Status CheckDocumentBytes(uint64_t num_bytes, const ServerOptions& options) {
  const auto limit = static_cast<uint64_t>(options.max_document_bytes);
  if (num_bytes <= limit) return grpc::Status::OK;
  return ToGrpcStatus(
      absl::ResourceExhaustedError(absl::StrCat("the document exceeds the limit of ", limit,
                                                " bytes; see --max-document-bytes")),
      {"DOCUMENT_TOO_LARGE", {{"limit_bytes", absl::StrCat(limit)}}, std::chrono::milliseconds(0)});
}

}  // namespace folio::server
