// A tokenizer for tests of token ids: letters a, b, c, ...; it reads no text.
#pragma once

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace folio::test {

class LetterTokenizer final : public Tokenizer {
 public:
  explicit LetterTokenizer(int vocab) {
    for (int i = 0; i < vocab; ++i) {
      const std::string letter(1, static_cast<char>('a' + i % 26));
      pieces_.push_back({PieceKind::kText, letter, letter});
    }
  }
  absl::StatusOr<std::string> Decode(std::span<const int32_t>) const override { return ""; }
  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return 1; }
  int32_t eos_id() const override { return 2; }
  int32_t unk_id() const override { return 0; }
  LeadingSpace leading_space() const override { return LeadingSpace::kKept; }
  SpaceCut space_cut() const override { return SpaceCut::kDropsSpace; }

 private:
  absl::Status AppendTokens(std::string_view, TextStart, const Interrupt&,
                            std::vector<int32_t>*) const override {
    return absl::OkStatus();
  }

  std::vector<Piece> pieces_;
  const std::vector<SpecialToken> special_tokens_;
};

}  // namespace folio::test
