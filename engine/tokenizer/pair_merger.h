#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/tokenizer/merge_table.h"

namespace folio {

// Byte-pair encoding of one run of symbols: of the neighbours that merge, those of the smallest
// rank do, the leftmost of several, until none merge. Keeps its memory from run to run; one thread.
class PairMerger {
 public:
  explicit PairMerger(const MergeTable& merges) : merges_(merges) {}

  // Replaces basic symbols by tokens. O(n log n).
  void Merge(std::vector<int32_t>* symbols);

  size_t memory_bytes() const;

 private:
  // One symbol, in a list of its neighbours.
  struct Part {
    int32_t symbol;
    int32_t before;
    int32_t after;
    int32_t rank;    // of the merge with the part after it; kNone without one
    int32_t merged;  // what that merge makes
  };
  static constexpr int32_t kNone = -1;

  // Whether the part merges with the one after it.
  bool FindMerge(int32_t at);
  void Push(int32_t at);
  uint64_t TakeBest();
  void MergeAt(int32_t at);

  const MergeTable& merges_;
  std::vector<Part> parts_;
  // Merges by rank and, below it, the left part: those of the basic symbols, sorted, the first to
  // be done last; and a heap of those found later. Where parts have changed since, the merge is
  // still here, but its rank is no longer the part's.
  std::vector<uint64_t> first_;
  std::vector<uint64_t> later_;
};

}  // namespace folio
