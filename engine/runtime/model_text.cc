#include "engine/runtime/model_text.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_prompt.h"
#include "engine/model/gguf_file.h"
#include "engine/tokenizer/gguf_tokenizer.h"
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/tokenizer_files.h"

namespace folio {
namespace {

// The format that the options name, or that of the checkpoint's template.
absl::StatusOr<std::optional<ChatFormat>> ChooseChatFormat(const EngineOptions& options,
                                                           const TokenizerConfig& config,
                                                           std::string* note) {
  const std::string& name = options.chat_format;
  if (name == "none") return std::nullopt;
  if (name != "auto")
    return name.ends_with(".json") ? ReadChatFormatFile(name) : FindChatFormat(name);
  if (!config.chat_template.has_value()) return std::nullopt;
  std::optional<ChatFormat> format = RecogniseChatTemplate(*config.chat_template);
  if (!format.has_value()) {
    *note =
        absl::StrCat("the chat template of the checkpoint is not known (known: ", ChatFormatNames(),
                     "); prompts are taken as they are; see --chat-format");
  }
  return format;
}

// The tokenizer of a directory or GGUF file. Returns what is said of the tokens around a text.
absl::StatusOr<TokenizerConfig> OpenTokenizerOf(const std::string& path, bool required,
                                                LoadedModel* model) {
  const int vocab_size = model->config.shape.vocab_size;
  if (IsModelFile(path)) {
    FOLIO_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    FOLIO_ASSIGN_OR_RETURN(const TokenizerFiles files, GgufTokenizerFiles(file));
    FOLIO_ASSIGN_OR_RETURN(model->tokenizer, OpenTokenizerFiles(path, files, vocab_size));
    return ParseTokenizerConfig(path, files.at("tokenizer_config.json"));
  }
  FOLIO_ASSIGN_OR_RETURN(TokenizerConfig config, ReadTokenizerConfig(path));
  auto tokenizer = OpenTokenizer(path, config, vocab_size);
  if (absl::IsNotFound(tokenizer.status()) && !required) return config;
  FOLIO_RETURN_IF_ERROR(tokenizer.status());
  model->tokenizer = *std::move(tokenizer);
  return config;
}

}  // namespace

absl::Status OpenModelText(const EngineOptions& options, bool tokenizer_required,
                           LoadedModel* model) {
  FOLIO_ASSIGN_OR_RETURN(const TokenizerConfig config,
                         OpenTokenizerOf(options.model_dir, tokenizer_required, model));
  if (model->tokenizer == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const std::optional<ChatFormat> format,
                         ChooseChatFormat(options, config, &model->info.chat_note));
  if (!format.has_value()) return absl::OkStatus();
  const auto name_of = [&](const std::string& named, int32_t id) {
    return named.empty() && id >= 0 ? model->tokenizer->pieces()[id].name : named;
  };
  model->info.chat = std::make_shared<const Chat>(
      *format, name_of(config.bos_token, model->tokenizer->bos_id()),
      name_of(config.eos_token, model->tokenizer->eos_id()), *model->tokenizer);
  return absl::OkStatus();
}

}  // namespace folio
