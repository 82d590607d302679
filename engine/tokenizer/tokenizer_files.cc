#include "engine/tokenizer/tokenizer_files.h"

#include "engine/base/status_macros.h"
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace folio {

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizerFiles(const std::string& what,
                                                              const TokenizerFiles& files,
                                                              int max_vocab_size) {
  FOLIO_ASSIGN_OR_RETURN(const TokenizerConfig config,
                         ParseTokenizerConfig(what, files.at("tokenizer_config.json")));
  if (const auto spm = files.find("tokenizer.model"); spm != files.end()) {
    return SentencePieceTokenizer::FromBytes(what, spm->second, max_vocab_size, config);
  }
  return TokenizerFromJson(what, files.at("tokenizer.json"), config, max_vocab_size);
}

}  // namespace folio
