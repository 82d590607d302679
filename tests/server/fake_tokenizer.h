#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio::testing {

// A token per byte, with a space in front of every text: Encode("ab") is the tokens of " ab". Like
// the real one it may therefore be cut at spaces. Texts that contain kHold wait in Encode until
// Release.
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 1;
  static constexpr int32_t kEos = 2;
  static constexpr int32_t kFirstByte = 3;
  static constexpr std::string_view kHold = "[hold]";

  FakeTokenizer();

  // What Encode gives.
  static std::vector<int32_t> TokensOf(std::string_view text);

  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const override;
  const std::vector<Piece>& pieces() const override { return pieces_; }
  const std::vector<SpecialToken>& special_tokens() const override { return special_tokens_; }
  int32_t bos_id() const override { return kBos; }
  int32_t eos_id() const override { return kEos; }
  int32_t unk_id() const override { return 0; }
  LeadingSpace leading_space() const override { return LeadingSpace::kFirstDropped; }
  SpaceCut space_cut() const override { return SpaceCut::kDropsSpace; }

  // Blocks until so many texts wait in Encode.
  void WaitUntilHolding(int count = 1) const;
  void Release() const;

 private:
  absl::Status AppendTokens(std::string_view text, TextStart start, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const override;

  std::vector<Piece> pieces_;
  const std::vector<SpecialToken> special_tokens_ = {{"<s>", kBos}, {"</s>", kEos}};
  mutable std::mutex mu_;
  mutable std::condition_variable changed_;
  mutable int num_holding_ = 0;    // guarded by mu_
  mutable bool released_ = false;  // guarded by mu_
};

}  // namespace folio::testing
