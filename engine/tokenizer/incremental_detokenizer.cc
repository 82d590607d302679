#include "engine/tokenizer/incremental_detokenizer.h"

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/piece.h"
#include "engine/tokenizer/utf8.h"

namespace folio {

using LeadingSpace = Tokenizer::LeadingSpace;

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, Start start)
    : tokenizer_(tokenizer),
      drops_spaces_(start == Start::kWholeText &&
                    tokenizer.leading_space() != LeadingSpace::kKept) {}

std::string IncrementalDetokenizer::Add(int32_t token) {
  std::string text;
  if (!tokenizer_.Contains(token)) {
    text = Flush();
    text += kReplacementCharacter;
  } else if (const Piece& piece = tokenizer_.pieces()[static_cast<size_t>(token)];
             piece.kind == PieceKind::kBytes) {
    for (const char byte : piece.text) text += AddByte(byte);
  } else {
    text = Flush();
    if (!text.empty()) drops_spaces_ = false;
    text += AddText(piece);
  }
  if (!text.empty()) drops_spaces_ = false;
  return text;
}

std::string IncrementalDetokenizer::AddText(const Piece& piece) {
  if (piece.kind != PieceKind::kText || !drops_spaces_ || !piece.name.starts_with(kSpaceSymbol)) {
    return piece.text;
  }
  drops_spaces_ = tokenizer_.leading_space() == LeadingSpace::kAllDropped;
  return piece.text.substr(1);
}

std::string IncrementalDetokenizer::AddByte(char byte) {
  std::string text;
  pending_bytes_ += byte;
  while (!pending_bytes_.empty()) {
    const Utf8Step step = NextUtf8(pending_bytes_);
    if (step.state == Utf8State::kIncomplete) break;
    if (step.state == Utf8State::kInvalid) {
      text += kReplacementCharacter;
    } else {
      text.append(pending_bytes_, 0, step.num_bytes);
    }
    pending_bytes_.erase(0, step.num_bytes);
  }
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  for (size_t i = 0; i < pending_bytes_.size(); ++i) text += kReplacementCharacter;
  pending_bytes_.clear();
  return text;
}

absl::StatusOr<std::string> DecodeByPieces(const Tokenizer& tokenizer,
                                           std::span<const int32_t> ids) {
  IncrementalDetokenizer detokenizer(tokenizer, IncrementalDetokenizer::Start::kWholeText);
  std::string text;
  for (const int32_t id : ids) {
    if (!tokenizer.Contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is not in [0, ", tokenizer.vocab_size(), ")"));
    }
    text += detokenizer.Add(id);
  }
  return text + detokenizer.Flush();
}

}  // namespace folio
