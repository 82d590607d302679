#include "engine/tokenizer/json_vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace folio {
namespace {

// -1: none is named, or the file has no such token.
int32_t IdOf(const TokenizerJson& file, const std::string& token) {
  if (token.empty()) return -1;
  for (const TokenizerJson::AddedToken& added : file.added) {
    if (added.content == token) return added.id;
  }
  for (const auto& [name, id] : file.vocab) {
    if (name == token) return id;
  }
  return -1;
}

}  // namespace

// A model was never taught an end that its tokenizer.json does not have; without the beginning that
// it was taught it would answer badly.
absl::StatusOr<TextEnds> CheckIds(const TokenizerJson& file, const TokenizerConfig& config,
                                  int max_vocab_size) {
  int32_t last_id = file.bos_id;
  for (const auto& [token, id] : file.vocab) last_id = std::max(last_id, id);
  for (const TokenizerJson::AddedToken& token : file.added) last_id = std::max(last_id, token.id);
  if (last_id >= max_vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("has the token id ", last_id, ", the model's vocab_size is ", max_vocab_size));
  }
  TextEnds ends = {file.bos_id, IdOf(file, config.eos_token)};
  if (!config.adds_bos.has_value()) return ends;
  ends.bos_id = *config.adds_bos ? IdOf(file, config.bos_token) : -1;
  if (*config.adds_bos && ends.bos_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("has no token \"", config.bos_token,
                     "\", the bos_token that tokenizer_config.json puts in front of a text"));
  }
  return ends;
}

std::vector<Piece> PiecesOf(const TokenizerJson& file,
                            absl::FunctionRef<Piece(const std::string&)> make) {
  std::vector<Piece> pieces;
  const auto at = [&](int32_t id) -> Piece& {
    if (static_cast<size_t>(id) >= pieces.size()) {
      pieces.resize(id + 1, {PieceKind::kControl, "", ""});
    }
    return pieces[id];
  };
  for (const auto& [token, id] : file.vocab) at(id) = make(token);
  for (const TokenizerJson::AddedToken& token : file.added) {
    at(token.id) = token.special ? Piece{PieceKind::kControl, token.content, ""}
                                 : Piece{PieceKind::kText, token.content, token.content};
  }
  return pieces;
}

std::vector<SpecialToken> SpecialTokensOf(const TokenizerJson& file) {
  std::vector<SpecialToken> tokens;
  for (const TokenizerJson::AddedToken& token : file.added) {
    if (!token.special) continue;
    tokens.push_back({token.content, token.id, token.strips_left, token.strips_right});
  }
  return tokens;
}

}  // namespace folio
