#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/character_bpe.h"
#include "engine/tokenizer/json_vocabulary.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// A Hugging Face tokenizer.json of the kind that SentencePiece models are converted to (Llama 2,
// Mistral, Phi-3, Gemma): BPE over characters, spaces as kSpaceSymbol, bytes for characters that
// are no pieces. Special tokens of the file are never found in a text.
class MetaspaceTokenizer final : public Tokenizer {
 public:
  // As BpeTokenizer::Create. REQUIRES: file.metaspace.
  static absl::StatusOr<std::unique_ptr<MetaspaceTokenizer>> Create(const std::string& what,
                                                                    const TokenizerJson& file,
                                                                    const TokenizerConfig& config,
                                                                    int max_vocab_size);

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;

  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return ends_.bos_id; }
  int32_t eos_id() const override { return ends_.eos_id; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override {
    return rules_.prefix == Metaspace::Prefix::kNever ? LeadingSpace::kKept
                                                      : LeadingSpace::kFirstDropped;
  }
  SpaceCut space_cut() const override { return space_cut_; }
  size_t max_bytes_per_token() const override { return max_bytes_per_token_; }

 private:
  using Metaspace = TokenizerJson::Metaspace;

  MetaspaceTokenizer(const TokenizerJson& file, TextEnds ends, std::vector<Piece> pieces);
  absl::Status AppendTokens(std::string_view text, TextStart start, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;
  bool TakesSpace(std::string_view text, TextStart start) const;

  const Metaspace rules_;
  const TextEnds ends_;
  const std::vector<Piece> pieces_;
  const std::vector<SpecialToken> special_tokens_;
  std::unique_ptr<const CharacterBpe> bpe_;
  AddedTokens added_;  // not special
  SpaceCut space_cut_ = SpaceCut::kNever;
  size_t max_bytes_per_token_ = 1;
};

}  // namespace folio
