#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/tokenizer/interrupt.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/spm_processor.h"
#include "engine/tokenizer/window_merger.h"

namespace folio {

// Encodes as the SentencePiece library does with a BPE model of plain rules (SpmTraits), in linear
// time and little memory: symbols are characters, two neighbours merge into a piece that is both
// side by side, pieces of higher scores first. Immutable once made; safe for concurrent use.
class SpmBpe {
 public:
  // nullptr when the model has rules that only the library knows. `sizes` are for tests.
  static std::unique_ptr<const SpmBpe> Create(const SpmProcessor& processor,
                                              WindowMerger::Sizes sizes = {});

  // Appends the tokens of a text. REQUIRES: it is UTF-8. Errors: those of `interrupt`.
  absl::Status Encode(std::string_view text, const Interrupt& interrupt,
                      std::vector<int32_t>* ids) const;

 private:
  class Run;
  SpmBpe(const SpmProcessor& processor, WindowMerger::Sizes sizes);
  void AddCharacters();
  void AddMerges(const std::vector<float>& scores);
  // The symbol of a character, -1 if no piece has it.
  int32_t SymbolOf(std::string_view character) const;

  const WindowMerger::Sizes sizes_;
  const SpmTraits traits_;
  std::array<int32_t, 256> byte_ids_{};  // if traits_.has_byte_pieces
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
