#include "engine/chat/chat_format.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/quoted.h"

namespace folio {
namespace {

// Sources: the chat templates of the checkpoints that brought each format into use, as of 2025:
// Llama-2-chat, Meta-Llama-3 and 3.1-Instruct (with the date that the template gives by itself),
// ChatML of Qwen, Mistral-Instruct v0.2 and v0.3, Gemma-it (a system text as Gemma 3 has it),
// Phi-3-instruct, Zephyr-beta, Vicuna v1.5.
std::vector<ChatFormat> MakeFormats() {
  const auto llama3_turn = [](const char* role) {
    return absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n");
  };
  const ChatFormat llama3 = {.name = "llama3",
                             .begin = "{bos}",
                             .system_begin = llama3_turn("system"),
                             .system_end = "<|eot_id|>",
                             .user_begin = llama3_turn("user"),
                             .user_end = "<|eot_id|>",
                             .assistant_begin = llama3_turn("assistant"),
                             .assistant_end = "<|eot_id|>",
                             .answer_begin = llama3_turn("assistant"),
                             .trims = true};
  ChatFormat llama31 = llama3;
  llama31.name = "llama3.1";
  llama31.system_begin += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  llama31.always_system = true;
  const ChatFormat mistral = {.name = "mistral",
                              .begin = "{bos}",
                              .system_end = "\n\n",
                              .user_begin = "[INST] ",
                              .user_end = " [/INST]",
                              .assistant_begin = " ",
                              .assistant_end = "{eos}",
                              .system_in_user = true};
  ChatFormat mistral_v3 = mistral;
  mistral_v3.name = "mistral-v3";
  mistral_v3.user_end = "[/INST]";
  return {
      {.name = "llama2",
       .system_begin = "<<SYS>>\n",
       .system_end = "\n<</SYS>>\n\n",
       .user_begin = "{bos}[INST] ",
       .user_end = " [/INST]",
       .assistant_begin = " ",
       .assistant_end = " {eos}",
       .system_in_user = true,
       .trims = true},
      llama3,
      llama31,
      {.name = "chatml",
       .system_begin = "<|im_start|>system\n",
       .system_end = "<|im_end|>\n",
       .user_begin = "<|im_start|>user\n",
       .user_end = "<|im_end|>\n",
       .assistant_begin = "<|im_start|>assistant\n",
       .assistant_end = "<|im_end|>\n",
       .answer_begin = "<|im_start|>assistant\n"},
      mistral,
      mistral_v3,
      {.name = "gemma",
       .begin = "{bos}",
       .system_end = "\n\n",
       .user_begin = "<start_of_turn>user\n",
       .user_end = "<end_of_turn>\n",
       .assistant_begin = "<start_of_turn>model\n",
       .assistant_end = "<end_of_turn>\n",
       .answer_begin = "<start_of_turn>model\n",
       .system_in_user = true,
       .trims = true},
      {.name = "phi3",
       .system_begin = "<|system|>\n",
       .system_end = "<|end|>\n",
       .user_begin = "<|user|>\n",
       .user_end = "<|end|>\n",
       .assistant_begin = "<|assistant|>\n",
       .assistant_end = "<|end|>\n",
       .answer_begin = "<|assistant|>\n"},
      {.name = "zephyr",
       .system_begin = "<|system|>\n",
       .system_end = "{eos}\n",
       .user_begin = "<|user|>\n",
       .user_end = "{eos}\n",
       .assistant_begin = "<|assistant|>\n",
       .assistant_end = "{eos}\n",
       .answer_begin = "<|assistant|>\n"},
      {.name = "vicuna",
       .begin = "{bos}",
       .system_end = " ",
       .user_begin = "USER: ",
       .user_end = " ",
       .assistant_begin = "ASSISTANT: ",
       .assistant_end = "{eos}",
       .answer_begin = "ASSISTANT:",
       .default_system = "A chat between a curious user and an artificial intelligence assistant. "
                         "The assistant gives helpful, detailed, and polite answers to the user's "
                         "questions."},
      {.name = "plain",
       .begin = "{bos}",
       .system_end = "\n\n",
       .user_end = "\n\n",
       .assistant_end = "\n\n"},
  };
}

}  // namespace

std::array<std::string*, 9> ChatFormat::Strings() {
  return {&begin,           &system_begin,  &system_end,   &user_begin,    &user_end,
          &assistant_begin, &assistant_end, &answer_begin, &default_system};
}

std::string ChatFormat::Identity() const {
  std::string all;
  ChatFormat copy = *this;
  for (const std::string* text : copy.Strings()) absl::StrAppend(&all, text->size(), ":", *text);
  absl::StrAppend(&all, system_in_user, always_system, trims);
  const uint64_t checksum = Checksum(std::as_bytes(std::span(all.data(), all.size())));
  return absl::StrCat(name, "-", absl::Hex(checksum, absl::kZeroPad16));
}

std::span<const ChatFormat> ChatFormats() {
  static const auto* const formats = new std::vector<ChatFormat>(MakeFormats());
  return *formats;
}

std::string ChatFormatNames() {
  std::string names;
  for (const ChatFormat& format : ChatFormats()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", format.name);
  }
  return names;
}

absl::StatusOr<ChatFormat> FindChatFormat(std::string_view name) {
  for (const ChatFormat& format : ChatFormats()) {
    if (format.name == name) return format;
  }
  return absl::InvalidArgumentError(absl::StrCat("chat format ", Quoted(name),
                                                 " is not known; known: ", ChatFormatNames(),
                                                 ", or a file that ends with .json"));
}

}  // namespace folio
