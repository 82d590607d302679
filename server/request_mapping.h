#pragma once

#include <string>

#include "engine/runtime/engine.h"
#include "engine/types/request.h"
#include "folio/v1/common.pb.h"
#include "folio/v1/control.pb.h"
#include "folio/v1/documents.pb.h"
#include "folio/v1/inference.pb.h"
#include "server/document_upload.h"
#include "server/options.h"
#include "server/status_mapping.h"

// What speaks both protobuf and engine types, with sampling_mapping.h and constraint.h.
namespace folio::server {

// What is unset gives an empty name: the default of the engine or of the checkpoint.
AttentionSpec FromProto(const v1::AttentionStrategy& strategy, const v1::PositionScheme& position);
v1::AttentionStrategy ToProto(const StrategySpec& spec);
v1::PositionScheme ToProto(const PositionSpec& spec);
void ToProto(const Catalogue& catalogue, v1::ListStrategiesResponse* out);

// Of a request or an upload, -100 to 100.
void CheckPriority(int32_t priority, const std::string& field, FieldViolations* bad);

// An error of Engine::ResolveAttention, about the field `prefix`strategy or `prefix`position.
FieldViolation BadAttention(const absl::Status& status, const std::string& prefix);

// The request without its input (text, tokens, document) and its bad words. What it leaves out of
// sampling stays as it is in `spec`. What is wrong with it is added to `bad`.
void FromProto(const v1::GenerateRequest& request, const ServerOptions& options, GenerateSpec* spec,
               FieldViolations* bad);

// Fills in the event's arm.
void ToProto(const DeltaEvent& delta, v1::GenerateEvent* event);
void ToProto(const PromptEvent& prompt, v1::GenerateEvent* event);
void ToProto(const PrefillEvent& prefill, v1::GenerateEvent* event);
// Byte offsets are those of `document`, if there is one.
void ToProto(const EvidenceEvent& evidence, const Tokenizer& tokenizer,
             const DocumentUpload* document, v1::GenerateEvent* event);
v1::LayerEvidence ToProto(const EvidenceEvent& evidence, size_t layer);
void ToProto(const CompletedEvent& completed, v1::GenerateEvent* event);
void ToProto(const MemoryReceipt& receipt, v1::MemoryReceipt* out);
void ToProto(const Scheduling& scheduling, v1::Scheduling* out);

// REQUIRES: a document that the server has opened.
void ToProto(const DocumentInfo& info, v1::Document* document);

bool IsValidDocumentId(const std::string& id);
// What to say of one that is not.
inline constexpr char kDocumentIdRule[] = "must be 1 to 64 characters of [A-Za-z0-9_-]";

}  // namespace folio::server
