#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/tokenizer/interrupt.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/piece.h"
#include "engine/tokenizer/spm_processor.h"
#include "engine/tokenizer/window_merger.h"

namespace folio {

// Byte-pair encoding over characters (Sennrich et al. 2016), a space being kSpaceSymbol, in linear
// time and little memory: as the SentencePiece library does it with a model of plain rules
// (SpmTraits), and as a tokenizer.json with byte_fallback says. Immutable once made; safe for
// concurrent use.
class CharacterBpe {
 public:
  struct Rules {
    bool removes_extra_spaces = false;
    bool has_byte_pieces = false;  // they stand for characters that are no pieces
    bool pieces_end_at_spaces = false;
    int32_t unk_id = -1;  // for them otherwise; -1: they are left out
  };
  using Merges = std::vector<std::pair<std::string, std::string>>;

  // Of a SentencePiece model: two neighbours merge into a piece that is both side by side, pieces
  // of higher scores first. nullptr when it has rules that only the library knows. `sizes` are for
  // tests.
  static std::unique_ptr<const CharacterBpe> Create(const SpmProcessor& processor,
                                                    WindowMerger::Sizes sizes = {});
  // Of a list of merges, the first of it first; those of names that are no pieces of text are left
  // out.
  static std::unique_ptr<const CharacterBpe> Create(const std::vector<Piece>& pieces,
                                                    const Rules& rules, const Merges& merges);

  // Appends the tokens of a text, of which a space in front of it is the first part if `with_space`
  // and there is a text. REQUIRES: it is UTF-8. Errors: those of `interrupt`.
  absl::Status Encode(std::string_view text, bool with_space, const Interrupt& interrupt,
                      std::vector<int32_t>* ids) const;

 private:
  class Run;
  CharacterBpe(const std::vector<Piece>& pieces, const Rules& rules, WindowMerger::Sizes sizes);
  void AddCharacter(std::string_view character, int32_t symbol);
  void AddLoneCharacters();
  void AddMerges(const std::vector<float>& scores);
  void AddMerges(const Merges& merges);
  // The symbol of a character, -1 if no piece has it.
  int32_t SymbolOf(std::string_view character) const;
  // The symbol of a piece or character, -1 if there is none.
  int32_t SymbolOfName(std::string_view name) const;

  const WindowMerger::Sizes sizes_;
  const Rules rules_;
  std::array<int32_t, 256> byte_ids_{};  // if rules_.has_byte_pieces
  // The pieces that a text can have, by name. Symbols are their ids, and from num_pieces_ on
  // characters that are in pieces and none by themselves.
  absl::flat_hash_map<std::string, int32_t> pieces_;
  int32_t num_pieces_ = 0;
  std::vector<std::string> lone_characters_;  // by symbol - num_pieces_
  std::array<int32_t, 128> ascii_symbols_{};
  absl::flat_hash_map<uint32_t, int32_t> other_symbols_;  // by the bytes of the character
  MergeTable merges_;
};

}  // namespace folio
