#include "engine/tokenizer/metaspace_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/incremental_detokenizer.h"

namespace folio {
namespace {

constexpr size_t kNumBytes = 256;

Piece PieceOf(const std::string& name) {
  if (name.size() == 6 && name.starts_with("<0x") && name.ends_with('>')) {
    uint8_t byte = 0;
    const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, byte, 16);
    if (error == std::errc() && end == name.data() + 5) {
      return {PieceKind::kBytes, name, std::string(1, static_cast<char>(byte))};
    }
  }
  return {PieceKind::kText, name, absl::StrReplaceAll(name, {{kSpaceSymbol.data(), " "}})};
}

bool HasAllBytes(const std::vector<Piece>& pieces) {
  std::vector<bool> there(kNumBytes);
  for (const Piece& piece : pieces) {
    if (piece.kind == PieceKind::kBytes) there[static_cast<uint8_t>(piece.text[0])] = true;
  }
  return std::all_of(there.begin(), there.end(), [](bool is_there) { return is_there; });
}

// No piece has the symbol of a space behind another character.
bool EndAtSpaces(const std::vector<Piece>& pieces) {
  return std::none_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    const size_t other = piece.text.find_first_not_of(' ');
    return piece.kind == PieceKind::kText && other != std::string::npos &&
           piece.text.find(' ', other) != std::string::npos;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetaspaceTokenizer>> MetaspaceTokenizer::Create(
    const std::string& what, const TokenizerJson& file, const TokenizerConfig& config,
    int max_vocab_size) {
  const auto ends = CheckIds(file, config, max_vocab_size);
  if (!ends.ok()) {
    return absl::Status(ends.status().code(), absl::StrCat(what, ": ", ends.status().message()));
  }
  std::vector<Piece> pieces = PiecesOf(file, PieceOf);
  if (!HasAllBytes(pieces)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": \"model.vocab\" lacks some of the 256 tokens <0x00> to <0xFF>, which ",
        "\"model.byte_fallback\" needs"));
  }
  return std::unique_ptr<MetaspaceTokenizer>(
      new MetaspaceTokenizer(file, *ends, std::move(pieces)));
}

MetaspaceTokenizer::MetaspaceTokenizer(const TokenizerJson& file, TextEnds ends,
                                       std::vector<Piece> pieces)
    : rules_(*file.metaspace),
      ends_(ends),
      pieces_(std::move(pieces)),
      special_tokens_(SpecialTokensOf(file)) {
  const bool ends_at_spaces = EndAtSpaces(pieces_);
  bpe_ = CharacterBpe::Create(
      pieces_, {.has_byte_pieces = true, .pieces_end_at_spaces = ends_at_spaces}, file.merges);
  bool cuts = ends_at_spaces;
  for (const TokenizerJson::AddedToken& token : file.added) {
    if (token.special) continue;
    added_.Add(token);
    // The text behind such a token may begin with a space; the token itself may have one.
    cuts = cuts && token.content.find(' ') == std::string::npos;
  }
  for (const Piece& piece : pieces_) {
    max_bytes_per_token_ = std::max(max_bytes_per_token_, piece.name.size());
  }
  if (!cuts) return;
  space_cut_ =
      rules_.prefix == Metaspace::Prefix::kNever ? SpaceCut::kKeepsSpace : SpaceCut::kDropsSpace;
}

bool MetaspaceTokenizer::TakesSpace(std::string_view text, TextStart start) const {
  if (start == TextStart::kContinued || rules_.prefix == Metaspace::Prefix::kNever) return false;
  if (start == TextStart::kAfterSpecial && rules_.prefix == Metaspace::Prefix::kFirst) return false;
  const bool has_one = text.starts_with(' ') || text.starts_with(kSpaceSymbol);
  return !has_one || !rules_.only_if_missing;
}

absl::Status MetaspaceTokenizer::AppendTokens(std::string_view text, TextStart start,
                                              const Interrupt& interrupt,
                                              std::vector<int32_t>* ids) const {
  return added_.Split(text, ids, [&](std::string_view part) {
    const bool is_first = part.data() == text.data();
    const bool with_space = TakesSpace(part, is_first ? start : TextStart::kAfterSpecial);
    return bpe_->Encode(part, with_space, interrupt, ids);
  });
}

absl::StatusOr<std::string> MetaspaceTokenizer::Decode(std::span<const int32_t> ids) const {
  return DecodeByPieces(*this, ids);
}

}  // namespace folio
