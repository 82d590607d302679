#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/character_bpe.h"
#include "engine/tokenizer/spm_processor.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace folio {

// A SentencePiece model file (tokenizer.model) as a Tokenizer.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `config` names special tokens that the file lacks, whose ids follow those of its pieces.
  // `max_vocab_size` is the model's vocab_size: a token id must have an embedding. Errors:
  // NOT_FOUND; INVALID_ARGUMENT when the file is no SentencePiece model or has more pieces than
  // `max_vocab_size`; UNIMPLEMENTED when it rewrites decoded text (a denormalizer).
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Open(
      const std::string& path, int max_vocab_size, const TokenizerConfig& config = {});
  // The same from the bytes of a file; `what` names them in messages.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> FromBytes(
      const std::string& what, std::string_view model_bytes, int max_vocab_size,
      const TokenizerConfig& config = {});

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;

  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return processor_->traits().bos_id; }
  int32_t eos_id() const override { return eos_id_; }
  int32_t unk_id() const override { return processor_->traits().unk_id; }
  LeadingSpace leading_space() const override;
  size_t encode_bytes_per_byte() const override;
  size_t max_bytes_per_token() const override;
  SpaceCut space_cut() const override {
    return processor_->traits().can_cut_at_spaces ? SpaceCut::kDropsSpace : SpaceCut::kNever;
  }

 private:
  absl::Status AppendTokens(std::string_view text, TextStart start, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;
  SentencePieceTokenizer(std::unique_ptr<SpmProcessor> processor, const TokenizerConfig& config,
                         int max_vocab_size);
  void AddSpecialTokens(const TokenizerConfig& config, int max_vocab_size);
  // Of a text without names of special tokens.
  absl::Status AppendPart(std::string_view text, bool takes_space, const Interrupt& interrupt,
                          std::vector<int32_t>* ids) const;

  const std::unique_ptr<const SpmProcessor> processor_;
  const std::unique_ptr<const CharacterBpe> bpe_;  // nullptr: the library encodes
  const bool legacy_;                              // TokenizerConfig
  std::vector<Piece> pieces_;
  std::vector<SpecialToken> special_tokens_;
  std::vector<std::string> special_pieces_;  // of them, those that are pieces of text in the file
  int32_t eos_id_;
};

}  // namespace folio
