#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace folio {

// The merges of a byte-pair encoding (Sennrich et al. 2016): which two neighbouring symbols become
// one, and which merge goes first. A symbol is a number >= 0: a basic one (a byte or a character),
// or what a merge makes. Filled once; const members are safe for concurrent use.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = 0;  // smaller goes first; among equals the one further left
    int32_t symbol = 0;
  };

  // The first merge of a pair stays. REQUIRES: what the symbols stand for, `left` and `right` side
  // by side, is what `merge.symbol` stands for, and neither is empty.
  void Add(int32_t left, int32_t right, Merge merge);

  // nullptr when the two do not merge.
  const Merge* Find(int32_t left, int32_t right) const;

  // Appends the basic symbols of `symbol`.
  void Expand(int32_t symbol, std::vector<int32_t>* basic) const;

 private:
  absl::flat_hash_map<uint64_t, Merge> merges_;     // by both symbols
  std::vector<std::pair<int32_t, int32_t>> parts_;  // by symbol; {-1, -1}: basic
};

}  // namespace folio
