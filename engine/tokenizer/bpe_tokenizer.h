#pragma once

#include <bitset>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/text_splitter.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace folio {

// A Hugging Face tokenizer.json of the byte-level BPE kind as a Tokenizer. Special tokens of the
// file are never found in a text: what a user writes cannot pose as one.
class BpeTokenizer final : public Tokenizer {
 public:
  // Reads tokenizer_config.json beside the file, too, if there is one. `max_vocab_size` is the
  // model's vocab_size: a token id of the file must have an embedding. Errors: NOT_FOUND;
  // INVALID_ARGUMENT and UNIMPLEMENTED as ParseTokenizerJson and ParseTokenizerConfig.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Open(const std::string& path,
                                                            int max_vocab_size);
  // The same from the text of a file; `what` names it in messages.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> FromJson(const std::string& what,
                                                                std::string_view text,
                                                                int max_vocab_size,
                                                                const TokenizerConfig& config = {});

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;

  const std::vector<Piece>& pieces() const override { return pieces_; }
  int32_t bos_id() const override { return ends_.bos_id; }
  int32_t eos_id() const override { return ends_.eos_id; }
  int32_t unk_id() const override { return -1; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return space_cut_; }
  size_t max_bytes_per_token() const override;

 private:
  using AddedToken = TokenizerJson::AddedToken;

  absl::Status AppendTokens(std::string_view text, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;

  // Token ids, -1: none.
  struct Ends {
    int32_t bos_id;
    int32_t eos_id;
  };
  static absl::StatusOr<Ends> EndsOf(const TokenizerJson& file, const TokenizerConfig& config);

  BpeTokenizer(const TokenizerJson& file, Ends ends, BpeModel model, TextSplitter splitter);
  void FillPieces(const TokenizerJson& file);

  // Those of one kind, longer ones first.
  struct AddedTokens {
    void Add(const AddedToken& token);
    // nullptr when `text` begins with none.
    const AddedToken* At(std::string_view text) const;

    std::vector<AddedToken> tokens;
    std::bitset<256> first_bytes;
  };

  // Calls `between` for the text around the given added tokens, and appends their ids.
  template <typename Between>
  static absl::Status SplitAt(const AddedTokens& added, std::string_view text,
                              std::vector<int32_t>* ids, Between between);
  // The memory and the place of one text's encoding.
  struct Work;
  absl::Status EncodeNormalized(std::string_view text, Work* work) const;

  const BpeModel model_;
  const TextSplitter splitter_;
  const bool nfc_;
  const Ends ends_;
  SpaceCut space_cut_ = SpaceCut::kNever;
  std::vector<Piece> pieces_;
  // Not special.
  AddedTokens raw_added_;
  AddedTokens normalized_added_;
};

}  // namespace folio
