#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace folio {

// How a model was taught to see a conversation: the strings around its turns. In them {bos} and
// {eos} stand for the checkpoint's tokens, and names of special tokens for these tokens.
struct ChatFormat {
  std::string name = {};
  std::string begin = {};
  std::string system_begin = {};
  std::string system_end = {};
  std::string user_begin = {};
  std::string user_end = {};
  // Around an earlier answer, and what a new one follows.
  std::string assistant_begin = {};
  std::string assistant_end = {};
  std::string answer_begin = {};
  // Of a conversation without one.
  std::string default_system = {};
  // The system text belongs to the first turn of the user, in front of what he says.
  bool system_in_user = false;
  // There is a system turn even without text.
  bool always_system = false;
  // Spaces and line ends around texts are left out.
  bool trims = false;

  bool operator==(const ChatFormat&) const = default;

  // Changes with every string: two formats with the same identity write the same text.
  std::string Identity() const;

  // The strings that may name special tokens.
  std::array<std::string*, 9> Strings();
};

std::span<const ChatFormat> ChatFormats();
// Their names, for messages.
std::string ChatFormatNames();

// Errors: INVALID_ARGUMENT naming the known ones.
absl::StatusOr<ChatFormat> FindChatFormat(std::string_view name);

// A file with a JSON object: the fields of ChatFormat that are strings or flags, except its name,
// which is "file". What is left out is empty. Errors: INVALID_ARGUMENT naming the field; those of
// reading.
absl::StatusOr<ChatFormat> ReadChatFormatFile(const std::string& path);

// The format that a Jinja template of a checkpoint writes, by what is typical of it; nullopt: none
// that is known. Of templates that call tools, or look at other things than texts, the part that
// writes a plain conversation is meant.
std::optional<ChatFormat> RecogniseChatTemplate(std::string_view chat_template);

}  // namespace folio
