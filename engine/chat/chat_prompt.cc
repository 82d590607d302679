#include "engine/chat/chat_prompt.h"

#include <utility>

#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";

std::string_view WithoutLeft(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

std::string_view WithoutRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::string_view Trimmed(std::string_view text, bool trims) {
  return trims ? WithoutLeft(WithoutRight(text)) : text;
}

}  // namespace

const char kDocumentSystem[] =
    "The user gives you a document and asks about it. Answer from the document alone; where it "
    "does "
    "not have the answer, say so.";
const char kDocumentEnd[] = "\n\n";

// The longest that begins here.
const SpecialToken* ChatEncoder::SpecialAt(std::string_view text) const {
  const SpecialToken* longest = nullptr;
  for (const SpecialToken& token : tokenizer_.special_tokens()) {
    if (token.name.empty() || !text.starts_with(token.name)) continue;
    if (longest == nullptr || token.name.size() > longest->name.size()) longest = &token;
  }
  return longest;
}

absl::Status ChatEncoder::AddSpecial(const SpecialToken& token) {
  if (token.strips_left) open_text_.resize(WithoutRight(open_text_).size());
  FOLIO_RETURN_IF_ERROR(Finish());
  tokens_.push_back(token.id);
  start_ = TextStart::kAfterSpecial;
  strips_ = token.strips_right;
  return absl::OkStatus();
}

absl::Status ChatEncoder::AddFormat(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const SpecialToken* token = SpecialAt(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    AddText(text.substr(begin, at - begin));
    FOLIO_RETURN_IF_ERROR(AddSpecial(*token));
    begin = at += token->name.size();
  }
  AddText(text.substr(begin));
  return absl::OkStatus();
}

void ChatEncoder::AddText(std::string_view text) {
  if (strips_ && open_text_.empty()) text = WithoutLeft(text);
  open_text_ += text;
}

absl::Status ChatEncoder::Finish() {
  if (open_text_.empty()) return absl::OkStatus();
  FOLIO_RETURN_IF_ERROR(tokenizer_.Append(open_text_, interrupt_, &tokens_, start_));
  open_text_.clear();
  start_ = TextStart::kContinued;
  return absl::OkStatus();
}

Chat::Chat(ChatFormat format, std::string_view bos, std::string_view eos,
           const Tokenizer& tokenizer)
    : format_(std::move(format)) {
  for (std::string* text : format_.Strings()) {
    *text = absl::StrReplaceAll(
        *text, {{"{bos}", {bos.data(), bos.size()}}, {"{eos}", {eos.data(), eos.size()}}});
  }
  for (const SpecialToken& token : tokenizer.special_tokens()) {
    if (token.name.empty() || format_.assistant_end.find(token.name) == std::string::npos) continue;
    end_tokens_.push_back(token.id);
  }
}

absl::Status Chat::AddLead(std::string_view system, ChatEncoder* out) const {
  system = Trimmed(system, format_.trims && !format_.system_in_user);
  const auto add_system = [&]() -> absl::Status {
    if (system.empty() && !format_.always_system) return absl::OkStatus();
    FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.system_begin));
    out->AddText(system);
    return out->AddFormat(format_.system_end);
  };
  FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.begin));
  if (!format_.system_in_user) FOLIO_RETURN_IF_ERROR(add_system());
  FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.user_begin));
  return format_.system_in_user ? add_system() : absl::OkStatus();
}

absl::Status Chat::AddQuestions(std::span<const ChatTurn> history, std::string_view question,
                                ChatEncoder* out) const {
  for (const ChatTurn& turn : history) {
    out->AddText(Trimmed(turn.question, format_.trims));
    FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.user_end));
    FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.assistant_begin));
    out->AddText(Trimmed(turn.answer, format_.trims));
    FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.assistant_end));
    FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.user_begin));
  }
  out->AddText(Trimmed(question, format_.trims));
  FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.user_end));
  FOLIO_RETURN_IF_ERROR(out->AddFormat(format_.answer_begin));
  return out->Finish();
}

absl::StatusOr<std::vector<int32_t>> Chat::Encode(std::string_view system,
                                                  std::span<const ChatTurn> history,
                                                  std::string_view question,
                                                  const Tokenizer& tokenizer,
                                                  const Interrupt& interrupt) const {
  ChatEncoder encoder(tokenizer, TextStart::kBeginning);
  encoder.set_interrupt(interrupt);
  FOLIO_RETURN_IF_ERROR(AddLead(system, &encoder));
  FOLIO_RETURN_IF_ERROR(AddQuestions(history, question, &encoder));
  return std::move(encoder.tokens());
}

absl::StatusOr<std::vector<int32_t>> Chat::EncodeAfterDocument(std::span<const ChatTurn> history,
                                                               std::string_view question,
                                                               const Tokenizer& tokenizer,
                                                               const Interrupt& interrupt) const {
  ChatEncoder encoder(tokenizer, TextStart::kContinued);
  encoder.set_interrupt(interrupt);
  encoder.AddText(kDocumentEnd);
  FOLIO_RETURN_IF_ERROR(AddQuestions(history, question, &encoder));
  return std::move(encoder.tokens());
}

}  // namespace folio
