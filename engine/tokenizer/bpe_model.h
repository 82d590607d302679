#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

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

  // Appends the tokens of one word. O(n log n) in its bytes.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;
  };
  const Merge* Find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;      // by both ids
  std::unordered_map<std::string, int32_t> words_;  // if whole_words_first
};

}  // namespace folio
