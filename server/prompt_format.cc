#include "server/prompt_format.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

constexpr size_t kMaxSystemBytes = 64 << 10;
constexpr int kMaxTurns = 256;

}  // namespace

const Chat* ChatFor(v1::PromptFormat format, const EngineInfo& info, const std::string& field,
                    FieldViolations* bad) {
  switch (format) {
    case v1::PROMPT_FORMAT_UNSPECIFIED:
      return info.chat.get();
    case v1::PROMPT_FORMAT_RAW:
      return nullptr;
    case v1::PROMPT_FORMAT_CHAT:
      if (info.chat == nullptr) {
        const std::string why = info.chat_note.empty()
                                    ? "the model has no chat template; see the flag --chat-format"
                                    : info.chat_note;
        bad->push_back({field, absl::StrCat("is CHAT: ", why)});
      }
      return info.chat.get();
    default:
      bad->push_back({field, absl::StrCat("is ", static_cast<int>(format), ", no PromptFormat")});
      return nullptr;
  }
}

absl::StatusOr<PromptLead> LeadOfDocument(const Chat* chat, const std::string& system,
                                          const Tokenizer& tokenizer) {
  PromptLead lead;
  if (chat == nullptr) {
    if (tokenizer.bos_id() >= 0) lead.tokens.push_back(tokenizer.bos_id());
    return lead;
  }
  ChatEncoder encoder(tokenizer, TextStart::kBeginning);
  FOLIO_RETURN_IF_ERROR(chat->AddLead(system, &encoder));
  lead.format =
      absl::StrCat(chat->format().Identity(), "/",
                   absl::Hex(Checksum(std::as_bytes(std::span(system.data(), system.size())))));
  lead.tokens = std::move(encoder.tokens());
  lead.open_text = encoder.open_text();
  lead.start = encoder.open_start();
  return lead;
}

bool IsOfFormat(const std::string& lead_format, const Chat* chat) {
  if (chat == nullptr) return lead_format.empty();
  return lead_format.starts_with(chat->format().Identity() + "/");
}

std::string WhatIsWrongWithSystem(const std::string& system) {
  if (system.size() <= kMaxSystemBytes) return "";
  return absl::StrCat("has ", system.size(), " bytes, the limit is ", kMaxSystemBytes);
}

void CheckHistory(const ChatTurns& history, const std::string& field, FieldViolations* bad) {
  if (history.size() <= kMaxTurns) return;
  bad->push_back({field, absl::StrCat("has ", history.size(), " turns, the limit is ", kMaxTurns)});
}

std::vector<ChatTurn> FromProto(const ChatTurns& history) {
  std::vector<ChatTurn> turns;
  for (const v1::ChatTurn& turn : history) turns.push_back({turn.question(), turn.answer()});
  return turns;
}

}  // namespace folio::server
