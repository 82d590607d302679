#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/interrupt.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/window_merger.h"

namespace folio {

// Byte-pair encoding over bytes (Sennrich et al. 2016, on bytes as in GPT-2): a word starts as its
// bytes, and the pair of neighbours that was merged first in training is merged again and again,
// the leftmost of equals. Immutable; safe for concurrent use.
class BpeModel {
 public:
  struct Source {
    // Bytes of each token by id; ids may have gaps.
    std::vector<std::pair<std::string, int32_t>> vocab;
    // Pairs of tokens, by their bytes, in the order of training.
    std::vector<std::pair<std::string, std::string>> merges;
    // A word that is a token is taken whole, whatever the merges say.
    bool whole_words_first = false;
  };
  // Errors: INVALID_ARGUMENT when a byte has no token, or a merge names tokens that do not exist.
  static absl::StatusOr<BpeModel> Create(const Source& source);

  const MergeTable& merges() const { return merges_; }

  // Appends the tokens of one word. `merger` is memory to work in, made for merges(). Errors: those
  // of the interrupt that `check` asks.
  absl::Status Encode(std::string_view word, WindowMerger* merger, InterruptCheck* check,
                      std::vector<int32_t>* ids) const;

 private:
  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  absl::flat_hash_map<std::string, int32_t> words_;  // if whole_words_first
};

}  // namespace folio
