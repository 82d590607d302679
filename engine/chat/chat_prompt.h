#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/chat/chat_format.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// What a document is asked with where nobody says otherwise: the system text in front of it.
extern const char kDocumentSystem[];
// Between a document and the first question.
extern const char kDocumentEnd[];

// An earlier question and its answer.
struct ChatTurn {
  std::string question;
  std::string answer;
};

// Tokens of a text of which parts come from a format and parts from users: in those of the format,
// names of special tokens are these tokens, in those of users never. What lies between two special
// tokens is encoded as one text.
class ChatEncoder {
 public:
  // `start`: what is in front of the first part.
  ChatEncoder(const Tokenizer& tokenizer, TextStart start) : tokenizer_(tokenizer), start_(start) {}

  // Errors: those of Tokenizer::Append.
  absl::Status AddFormat(std::string_view text);
  void AddText(std::string_view text);
  // Encodes what is open. Errors: as AddFormat.
  absl::Status Finish();

  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::vector<int32_t>& tokens() { return tokens_; }
  // The text behind the last special token, which has not been encoded, and its place.
  const std::string& open_text() const { return open_text_; }
  TextStart open_start() const { return start_; }

  void set_interrupt(Interrupt interrupt) { interrupt_ = std::move(interrupt); }

 private:
  const SpecialToken* SpecialAt(std::string_view text) const;
  absl::Status AddSpecial(const SpecialToken& token);

  const Tokenizer& tokenizer_;
  Interrupt interrupt_;
  TextStart start_;
  bool strips_ = false;  // spaces at the start of what is open
  std::string open_text_;
  std::vector<int32_t> tokens_;
};

// The checkpoint's own format, ready for its tokenizer. Immutable; safe for concurrent use.
class Chat {
 public:
  // `bos` and `eos` are names of tokens, empty: none.
  Chat(ChatFormat format, std::string_view bos, std::string_view eos, const Tokenizer& tokenizer);

  const ChatFormat& format() const { return format_; }
  // An answer ends with any of them.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

  // What is in front of the first question of a conversation, or of its document.
  absl::Status AddLead(std::string_view system, ChatEncoder* out) const;
  // The questions, the earlier ones with their answers, up to where the new answer begins.
  absl::Status AddQuestions(std::span<const ChatTurn> history, std::string_view question,
                            ChatEncoder* out) const;

  // All of a conversation without a document. Errors: INVALID_ARGUMENT when a text is not UTF-8 or
  // too large; those of `interrupt`.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view system,
                                              std::span<const ChatTurn> history,
                                              std::string_view question, const Tokenizer& tokenizer,
                                              const Interrupt& interrupt = nullptr) const;
  // What follows a document.
  absl::StatusOr<std::vector<int32_t>> EncodeAfterDocument(
      std::span<const ChatTurn> history, std::string_view question, const Tokenizer& tokenizer,
      const Interrupt& interrupt = nullptr) const;

 private:
  ChatFormat format_;
  std::vector<int32_t> end_tokens_;
};

}  // namespace folio
