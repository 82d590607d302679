#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat/chat_prompt.h"
#include "engine/runtime/engine.h"
#include "folio/v1/common.pb.h"
#include "server/status_mapping.h"

namespace folio::server {

// What is in front of a text: tokens, and text that is encoded with it.
struct PromptLead {
  // ChatFormat::Identity, a slash, and a checksum of the system text; empty: raw.
  std::string format;
  std::vector<int32_t> tokens;
  std::string open_text;
  TextStart start = TextStart::kBeginning;
};

// The chat format if `format` asks for it, null for raw. What is wrong is added to `bad` as that of
// `field`.
const Chat* ChatFor(v1::PromptFormat format, const EngineInfo& info, const std::string& field,
                    FieldViolations* bad);

// In front of a document, raw or with `chat`. Errors: INVALID_ARGUMENT when `system` is not UTF-8.
absl::StatusOr<PromptLead> LeadOfDocument(const Chat* chat, const std::string& system,
                                          const Tokenizer& tokenizer);

// Whether a document of the format `lead_format` (PromptLead) can be asked in `chat`.
bool IsOfFormat(const std::string& lead_format, const Chat* chat);

// Empty: `system` is not too long.
std::string WhatIsWrongWithSystem(const std::string& system);

using ChatTurns = google::protobuf::RepeatedPtrField<v1::ChatTurn>;
void CheckHistory(const ChatTurns& history, const std::string& field, FieldViolations* bad);
std::vector<ChatTurn> FromProto(const ChatTurns& history);

}  // namespace folio::server
