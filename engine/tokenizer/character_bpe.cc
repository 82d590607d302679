#include "engine/tokenizer/character_bpe.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr int32_t kNone = -1;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// A character of more than one byte, as a number. REQUIRES: at most four bytes.
uint32_t BytesKey(std::string_view character) {
  uint32_t key = 0;
  std::memcpy(&key, character.data(), character.size());
  return key;
}

// What the library leaves of a text if it removes extra spaces at both ends: those before it may be
// spaces only, those after it the space symbol, too.
std::string_view WithoutOuterSpaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (true) {
    if (text.ends_with(' ')) {
      text.remove_suffix(1);
    } else if (text.ends_with(kSpaceSymbol)) {
      text.remove_suffix(kSpaceSymbol.size());
    } else {
      return text;
    }
  }
}

}  // namespace

std::unique_ptr<const CharacterBpe> CharacterBpe::Create(const SpmProcessor& processor,
                                                         WindowMerger::Sizes sizes) {
  const SpmTraits& traits = processor.traits();
  if (!traits.is_plain_bpe) return nullptr;
  const Rules rules = {traits.removes_extra_spaces, traits.has_byte_pieces,
                       traits.pieces_end_at_spaces, traits.unk_id};
  std::unique_ptr<CharacterBpe> bpe(new CharacterBpe(processor.pieces(), rules, sizes));
  bpe->AddLoneCharacters();
  bpe->AddMerges(processor.scores());
  return bpe;
}

std::unique_ptr<const CharacterBpe> CharacterBpe::Create(const std::vector<Piece>& pieces,
                                                         const Rules& rules, const Merges& merges) {
  std::unique_ptr<CharacterBpe> bpe(new CharacterBpe(pieces, rules, {}));
  bpe->AddMerges(merges);
  return bpe;
}

CharacterBpe::CharacterBpe(const std::vector<Piece>& pieces, const Rules& rules,
                           WindowMerger::Sizes sizes)
    : sizes_(sizes), rules_(rules), num_pieces_(static_cast<int32_t>(pieces.size())) {
  ascii_symbols_.fill(kNone);
  for (size_t at = 0; at < pieces.size(); ++at) {
    const Piece& piece = pieces[at];
    const auto id = static_cast<int32_t>(at);
    if (piece.kind == PieceKind::kBytes) byte_ids_[static_cast<uint8_t>(piece.text[0])] = id;
    // A normalised text has no plain space, and is UTF-8.
    const bool can_match = piece.kind == PieceKind::kText && !piece.name.empty() &&
                           IsValidUtf8(piece.name) && piece.name.find(' ') == std::string::npos;
    if (!can_match || !pieces_.emplace(piece.name, id).second) continue;
    if (piece.name.size() == Utf8Length(piece.name[0])) AddCharacter(piece.name, id);
  }
}

void CharacterBpe::AddCharacter(std::string_view character, int32_t symbol) {
  if (character.size() == 1) {
    ascii_symbols_[static_cast<uint8_t>(character[0])] = symbol;
  } else {
    other_symbols_.emplace(BytesKey(character), symbol);
  }
}

// Numbers for the characters of pieces that are no pieces themselves.
void CharacterBpe::AddLoneCharacters() {
  for (const auto& [name, id] : pieces_) {
    for (std::string_view rest = name; !rest.empty();) {
      const std::string_view character = rest.substr(0, Utf8Length(rest[0]));
      rest.remove_prefix(character.size());
      if (SymbolOf(character) != kNone) continue;
      AddCharacter(character, num_pieces_ + static_cast<int32_t>(lone_characters_.size()));
      lone_characters_.emplace_back(character);
    }
  }
}

// Every way to put a piece together from two symbols.
void CharacterBpe::AddMerges(const std::vector<float>& scores) {
  std::vector<float> order;
  for (const auto& [name, id] : pieces_) order.push_back(scores[id]);
  std::sort(order.begin(), order.end(), std::greater<>());
  for (const auto& [piece, id] : pieces_) {
    const std::string_view name = piece;
    const auto rank = static_cast<int32_t>(
        std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>()) - order.begin());
    for (size_t at = Utf8Length(name[0]); at < name.size(); at += Utf8Length(name[at])) {
      const int32_t left = SymbolOfName(name.substr(0, at));
      const int32_t right = left == kNone ? kNone : SymbolOfName(name.substr(at));
      if (right != kNone) merges_.Add(left, right, {rank, id});
    }
  }
}

void CharacterBpe::AddMerges(const Merges& merges) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left_name, right_name] = merges[rank];
    if (left_name.empty() || right_name.empty()) continue;  // no text has such a pair
    const int32_t left = SymbolOfName(left_name);
    const int32_t right = SymbolOfName(right_name);
    const int32_t both = SymbolOfName(left_name + right_name);
    if (left == kNone || right == kNone || both == kNone) continue;
    merges_.Add(left, right, {static_cast<int32_t>(rank), both});
  }
}

int32_t CharacterBpe::SymbolOf(std::string_view character) const {
  if (character.size() == 1) return ascii_symbols_[static_cast<uint8_t>(character[0])];
  const auto it = other_symbols_.find(BytesKey(character));
  return it == other_symbols_.end() ? kNone : it->second;
}

int32_t CharacterBpe::SymbolOfName(std::string_view name) const {
  if (name.size() == Utf8Length(name[0])) return SymbolOf(name);
  const auto it = pieces_.find(View(name));
  return it == pieces_.end() ? kNone : it->second;
}

// The encoding of one text.
class CharacterBpe::Run {
 public:
  Run(const CharacterBpe& model, std::vector<int32_t>* ids)
      : model_(model),
        space_(model.SymbolOf(kSpaceSymbol)),
        merger_(model.merges_, model.sizes_),
        ids_(ids) {}

  // A character of the normalised text.
  void Add(std::string_view character) {
    const int32_t symbol = model_.SymbolOf(character);
    if (symbol == kNone) {
      EndWord();
      AppendUnknown(character);
    } else {
      // No piece crosses the beginning of a word, so that words can be encoded by themselves.
      const bool begins = symbol == space_ && last_ != space_ && model_.rules_.pieces_end_at_spaces;
      if (begins) EndWord();
      merger_.Add(symbol);
    }
    last_ = symbol;
  }

  void EndWord() {
    merger_.Finish([this](int32_t symbol) {
      if (symbol < model_.num_pieces_) {
        ids_->push_back(symbol);
        after_unknown_ = false;
      } else {
        AppendUnknown(model_.lone_characters_[symbol - model_.num_pieces_]);
      }
    });
  }

 private:
  // A character that is no piece: its bytes, or one token for all such characters in a row.
  void AppendUnknown(std::string_view character) {
    if (model_.rules_.has_byte_pieces) {
      for (const char byte : character) {
        ids_->push_back(model_.byte_ids_[static_cast<uint8_t>(byte)]);
      }
    } else if (!after_unknown_ && model_.rules_.unk_id >= 0) {
      ids_->push_back(model_.rules_.unk_id);
      after_unknown_ = true;
    }
  }

  const CharacterBpe& model_;
  const int32_t space_;
  WindowMerger merger_;
  int32_t last_ = kNone;
  bool after_unknown_ = false;
  std::vector<int32_t>* const ids_;
};

absl::Status CharacterBpe::Encode(std::string_view text, bool with_space,
                                  const Interrupt& interrupt, std::vector<int32_t>* ids) const {
  const bool removes_spaces = rules_.removes_extra_spaces;
  if (removes_spaces) text = WithoutOuterSpaces(text);
  if (text.empty()) return absl::OkStatus();
  InterruptCheck check(interrupt);
  Run run(*this, ids);
  if (with_space) run.Add(kSpaceSymbol);
  bool after_space = false;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, Utf8Length(text[0]));
    text.remove_prefix(character.size());
    const bool is_space = character == " ";
    if (!is_space) {
      run.Add(character);
    } else if (!after_space) {
      run.Add(kSpaceSymbol);
    }
    after_space = is_space && removes_spaces;
    FOLIO_RETURN_IF_ERROR(check.Advance(character.size()));
  }
  run.EndWord();
  return absl::OkStatus();
}

}  // namespace folio
