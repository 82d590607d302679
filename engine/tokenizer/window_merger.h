#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/pair_merger.h"

namespace folio {

// Byte-pair encoding of a word of any length in windows: PairMerger's tokens for the whole word,
// with memory for a window and the tokens. docs/architecture.md, section 13, has the proof.
// Keeps its memory from word to word; one thread.
class WindowMerger {
 public:
  // Tests make both small, to have many seams.
  struct Sizes {
    size_t window_symbols = 512;  // merged at once, beside those of the overlap
    size_t overlap_tokens = 4;    // before a window that are merged again with it
  };

  explicit WindowMerger(const MergeTable& merges) : WindowMerger(merges, Sizes()) {}
  WindowMerger(const MergeTable& merges, Sizes sizes)
      : merges_(merges), merger_(merges), sizes_(sizes), now_(sizes) {}

  // The next basic symbol of the word.
  void Add(int32_t symbol) {
    new_.push_back(symbol);
    if (new_.size() >= now_.window_symbols) MergeWindow();
  }

  // Ends the word and calls `token` with each of its tokens.
  template <typename Token>
  void Finish(Token token) {
    if (tokens_.empty()) {
      merger_.Merge(&new_);
      for (const int32_t symbol : new_) token(symbol);
      new_.clear();
      return;
    }
    MergeWindow();
    for (const int32_t symbol : tokens_) token(symbol);
    tokens_.clear();
    now_ = sizes_;
  }

  size_t memory_bytes() const;

 private:
  void MergeWindow();
  bool JoinWindow();

  const MergeTable& merges_;
  PairMerger merger_;
  const Sizes sizes_;
  Sizes now_;                   // grown in this word
  std::vector<int32_t> new_;    // symbols that are in no token yet
  std::vector<int32_t> joint_;  // scratch
  // Of the word before new_: as many as a long word has bytes, and never copied to grow.
  std::deque<int32_t> tokens_;
};

}  // namespace folio
