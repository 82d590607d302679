#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/types/kv_types.h"
#include "engine/types/limits.h"

namespace folio::cpu {

// Chunk summaries in 8 bits (KvGeometry::rounded_summaries): a quarter of the bytes says which
// chunks can be among the best, and those alone are scored by their summaries in fp32. What is
// chosen is the same.
//
// With c = c' + rest and q = q' + rest, ' being rounded:
//   |q . c - q' . c'| <= |rest of q| |c'| + |q| |rest of c|

// Rounds the summary of one chunk, [dim], as lane `lane` of a tile. The first lane clears the
// others.
void RoundSummary(std::span<const float> summary, int lane, std::byte* tile);

// Rounds all summaries of a frame.
void RoundSummaryFrame(const KvGeometry& geometry, std::byte* frame);

struct RoundedQuery {
  std::array<uint32_t, kMaxHeadDim / 4> words;  // [dim / 4], four signed bytes each
  int32_t sum = 0;                              // of the bytes
  float scale = 0;
  float norm = 0;   // at least |q|
  float error = 0;  // at least |q - scale * bytes|
  // What products and sums in fp32 may be off by, as a share of the norms.
  float slack = 0;

  // `query` [dim]; a score is a sum of `num_terms` products.
  void Set(std::span<const float> query, int num_terms);
};

}  // namespace folio::cpu
