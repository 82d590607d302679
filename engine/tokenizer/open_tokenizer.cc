#include "engine/tokenizer/open_tokenizer.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/metaspace_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace folio {
namespace {

constexpr size_t kMaxFileBytes = 256 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(const std::string& what,
                                                             std::string_view text,
                                                             const TokenizerConfig& config,
                                                             int max_vocab_size) {
  FOLIO_ASSIGN_OR_RETURN(const TokenizerJson file, ParseTokenizerJson(what, text));
  if (file.metaspace.has_value()) {
    return MetaspaceTokenizer::Create(what, file, config, max_vocab_size);
  }
  return BpeTokenizer::Create(what, file, config, max_vocab_size);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model_dir,
                                                         const TokenizerConfig& config,
                                                         int max_vocab_size) {
  const std::filesystem::path dir(model_dir);
  const std::string json_path = (dir / "tokenizer.json").string();
  const std::string model_path = (dir / "tokenizer.model").string();
  const bool has_model = std::filesystem::exists(model_path);
  const auto text = ReadSmallFile(json_path, kMaxFileBytes);
  if (text.ok()) {
    auto tokenizer = TokenizerFromJson(json_path, *text, config, max_vocab_size);
    if (!absl::IsUnimplemented(tokenizer.status()) || !has_model) return tokenizer;
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  if (has_model) return SentencePieceTokenizer::Open(model_path, max_vocab_size, config);
  return absl::NotFoundError(
      absl::StrCat(model_dir, " has neither tokenizer.json nor tokenizer.model"));
}

}  // namespace folio
