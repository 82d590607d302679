#pragma once

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace folio {

// For models without files: a token is a byte. Ids as in Llama's vocabulary: <unk>, <s>, </s>, then
// the 256 bytes; what follows up to vocab_size has no text that Encode would make of anything.
class ByteTokenizer final : public Tokenizer {
 public:
  // REQUIRES: vocab_size >= 259.
  explicit ByteTokenizer(int vocab_size);

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return 1; }
  int32_t eos_id() const override { return 2; }
  int32_t unk_id() const override { return 0; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return SpaceCut::kKeepsSpace; }
  size_t max_bytes_per_token() const override { return 1; }

 private:
  absl::Status AppendTokens(std::string_view text, TextStart start, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;

  std::vector<Piece> pieces_;
  const std::vector<SpecialToken> special_tokens_ = {{"<s>", 1}, {"</s>", 2}};
};

}  // namespace folio
