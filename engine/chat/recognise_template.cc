// Chat formats by what is typical of their templates. Templates are programs (Jinja), which this
// does not run.
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/chat/chat_format.h"

namespace folio {
namespace {

// What a template must have and must not have, in the form of Plainly.
struct Signature {
  const char* format;
  std::vector<std::string_view> has;
  std::vector<std::string_view> lacks;
};

// The first that fits counts.
const std::vector<Signature>& Signatures() {
  static const auto* const signatures = new std::vector<Signature>{
      {"chatml", {"<|im_start|>", "<|im_end|>"}, {"<|im_sep|>"}},
      {"llama3.1", {"<|start_header_id|>", "<|eot_id|>", "CuttingKnowledgeDate"}, {}},
      {"llama3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, {}},
      {"gemma", {"<start_of_turn>", "<end_of_turn>"}, {}},
      {"phi3", {"<|user|>\n'+message['content']+'<|end|>\n", "<|assistant|>\n"}, {}},
      {"zephyr", {"<|user|>\n'+message['content']+eos_token", "<|assistant|>"}, {}},
      {"llama2", {"[INST]", "[/INST]", "<<SYS>>"}, {}},
      {"mistral", {"[INST]", "[/INST]"}, {}},
      {"vicuna", {"USER:", "ASSISTANT:"}, {}},
  };
  return *signatures;
}

// Texts that templates say where a conversation has no system text.
constexpr std::string_view kDefaultSystems[] = {
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
};

// Without spaces, in one kind of quotes, constants that are added up as one: what two ways to write
// the same template have in common.
std::string Plainly(std::string_view chat_template) {
  const std::string text = absl::StrReplaceAll(std::string(chat_template),
                                               {{"\\n", "\n"}, {" ", ""}, {"\t", ""}, {"\"", "'"}});
  return absl::StrReplaceAll(text, {{"'+'", ""}, {"message.content", "message['content']"}});
}

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool Fits(const Signature& signature, std::string_view text) {
  for (const std::string_view part : signature.has) {
    if (!Has(text, part)) return false;
  }
  for (const std::string_view part : signature.lacks) {
    if (Has(text, part)) return false;
  }
  return true;
}

}  // namespace

std::optional<ChatFormat> RecogniseChatTemplate(std::string_view chat_template) {
  const std::string plain = Plainly(chat_template);
  for (const Signature& signature : Signatures()) {
    if (!Fits(signature, plain)) continue;
    std::string name = signature.format;
    if (name == "mistral" && !Has(chat_template, " [/INST]")) name = "mistral-v3";
    ChatFormat format = *FindChatFormat(name);
    for (const std::string_view system : kDefaultSystems) {
      if (!format.default_system.empty() || !Has(chat_template, system)) continue;
      format.default_system = system;
    }
    const bool has_bos = Has(plain, "bos_token");
    if (!has_bos) {
      for (std::string* text : format.Strings())
        *text = absl::StrReplaceAll(*text, {{"{bos}", ""}});
    } else if (!Has(format.begin + format.user_begin, "{bos}")) {
      format.begin = "{bos}" + format.begin;
    }
    return format;
  }
  return std::nullopt;
}

}  // namespace folio
