#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/json_vocabulary.h"
#include "engine/tokenizer/text_splitter.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace folio {

// A Hugging Face tokenizer.json of the byte-level BPE kind as a Tokenizer. Special tokens of the
// file are never found in a text: what a user writes cannot pose as one.
class BpeTokenizer final : public Tokenizer {
 public:
  // `what` names the file in messages. `max_vocab_size` is the model's vocab_size: a token id of
  // the file must have an embedding. Errors: INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Create(const std::string& what,
                                                              const TokenizerJson& file,
                                                              const TokenizerConfig& config,
                                                              int max_vocab_size);

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;

  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return ends_.bos_id; }
  int32_t eos_id() const override { return ends_.eos_id; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return space_cut_; }
  size_t max_bytes_per_token() const override;

 private:
  absl::Status AppendTokens(std::string_view text, TextStart start, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;

  BpeTokenizer(const TokenizerJson& file, TextEnds ends, BpeModel model, TextSplitter splitter);

  // The memory and the place of one text's encoding.
  struct Work;
  absl::Status EncodeNormalized(std::string_view text, Work* work) const;

  const BpeModel model_;
  const TextSplitter splitter_;
  const bool nfc_;
  const TextEnds ends_;
  SpaceCut space_cut_ = SpaceCut::kNever;
  std::vector<Piece> pieces_;
  std::vector<SpecialToken> special_tokens_;
  // Not special.
  AddedTokens raw_added_;
  AddedTokens normalized_added_;
};

}  // namespace folio
