#include "engine/tokenizer/spm_bpe.h"

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

std::unique_ptr<const SpmBpe> SpmBpe::Create(const SpmProcessor& processor,
                                             WindowMerger::Sizes sizes) {
  if (!processor.traits().is_plain_bpe) return nullptr;
  return std::unique_ptr<const SpmBpe>(new SpmBpe(processor, sizes));
}

SpmBpe::SpmBpe(const SpmProcessor& processor, WindowMerger::Sizes sizes)
    : sizes_(sizes), traits_(processor.traits()) {
  const std::vector<Piece>& pieces = processor.pieces();
  for (size_t id = 0; id < pieces.size(); ++id) {
    const Piece& piece = pieces[id];
    if (piece.kind == PieceKind::kBytes) {
      byte_ids_[static_cast<uint8_t>(piece.text[0])] = static_cast<int32_t>(id);
    }
    // A normalised text has no plain space, and is UTF-8.
    const bool can_match = piece.kind == PieceKind::kText && IsValidUtf8(piece.name) &&
                           piece.name.find(' ') == std::string::npos;
    if (can_match) pieces_.emplace(piece.name, static_cast<int32_t>(id));
  }
  num_pieces_ = static_cast<int32_t>(pieces.size());
  AddCharacters();
  AddMerges(processor.scores());
}

// The characters of pieces: those that are pieces have their ids, others have numbers above.
void SpmBpe::AddCharacters() {
  ascii_symbols_.fill(kNone);
  for (const auto& [name, id] : pieces_) {
    for (std::string_view rest = name; !rest.empty();) {
      const std::string_view character = rest.substr(0, Utf8Length(rest[0]));
      rest.remove_prefix(character.size());
      if (SymbolOf(character) != kNone) continue;
      const auto piece = pieces_.find(View(character));
      int32_t symbol = num_pieces_ + static_cast<int32_t>(lone_characters_.size());
      if (piece != pieces_.end()) {
        symbol = piece->second;
      } else {
        lone_characters_.emplace_back(character);
      }
      if (character.size() == 1) {
        ascii_symbols_[static_cast<uint8_t>(character[0])] = symbol;
      } else {
        other_symbols_.emplace(BytesKey(character), symbol);
      }
    }
  }
}

// Every way to put a piece together from two symbols.
void SpmBpe::AddMerges(const std::vector<float>& scores) {
  std::vector<float> order;
  for (const auto& [name, id] : pieces_) order.push_back(scores[id]);
  std::sort(order.begin(), order.end(), std::greater<>());
  const auto part = [&](std::string_view name) {
    if (name.size() == Utf8Length(name[0])) return SymbolOf(name);
    const auto it = pieces_.find(View(name));
    return it == pieces_.end() ? kNone : it->second;
  };
  for (const auto& [piece, id] : pieces_) {
    const std::string_view name = piece;
    const auto rank = static_cast<int32_t>(
        std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>()) - order.begin());
    for (size_t at = Utf8Length(name[0]); at < name.size(); at += Utf8Length(name[at])) {
      const int32_t left = part(name.substr(0, at));
      const int32_t right = left == kNone ? kNone : part(name.substr(at));
      if (right != kNone) merges_.Add(left, right, {rank, id});
    }
  }
}

int32_t SpmBpe::SymbolOf(std::string_view character) const {
  if (character.size() == 1) return ascii_symbols_[static_cast<uint8_t>(character[0])];
  const auto it = other_symbols_.find(BytesKey(character));
  return it == other_symbols_.end() ? kNone : it->second;
}

// The encoding of one text.
class SpmBpe::Run {
 public:
  Run(const SpmBpe& model, std::vector<int32_t>* ids)
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
      const bool begins =
          symbol == space_ && last_ != space_ && model_.traits_.pieces_end_at_spaces;
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
    if (model_.traits_.has_byte_pieces) {
      for (const char byte : character) {
        ids_->push_back(model_.byte_ids_[static_cast<uint8_t>(byte)]);
      }
    } else if (!after_unknown_) {
      ids_->push_back(model_.traits_.unk_id);
      after_unknown_ = true;
    }
  }

  const SpmBpe& model_;
  const int32_t space_;
  WindowMerger merger_;
  int32_t last_ = kNone;
  bool after_unknown_ = false;
  std::vector<int32_t>* const ids_;
};

absl::Status SpmBpe::Encode(std::string_view text, const Interrupt& interrupt,
                            std::vector<int32_t>* ids) const {
  const bool removes_spaces = traits_.removes_extra_spaces;
  if (removes_spaces) text = WithoutOuterSpaces(text);
  if (text.empty()) return absl::OkStatus();
  InterruptCheck check(interrupt);
  Run run(*this, ids);
  if (traits_.adds_dummy_prefix) run.Add(kSpaceSymbol);
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
