#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/attention_plan.h"

namespace folio {

// One visible key of a query and the distance at which it is seen.
struct VisibleKey {
  int64_t position = 0;
  int64_t distance = 0;
  bool operator==(const VisibleKey&) const = default;
};

// What query `i` sees under a choice of chunks: the forced chunks, those that compete for the free
// picks, and a part of its own chunk. The query stands at (number of chosen chunks) * chunk_tokens
// + i mod chunk_tokens.
struct ChunkView {
  int64_t own = 0;  // index of its own chunk
  int64_t own_tokens = 0;
  int num_forced = 0;
  int64_t forced[2] = {0, 0};  // ascending
  int64_t candidates_begin = 0;
  int64_t candidates_end = 0;

  int64_t num_candidates() const { return candidates_end - candidates_begin; }
};
ChunkView ViewChunks(const ChunkSelection& selection, int64_t i, bool prompt_row);

// Whether query `i` chooses single tokens in `layer`. The last row of a prompt does, like those of
// the answer.
bool ChoosesTokens(const AttentionPlan& plan, int64_t i, int layer);

// The plan of query `i` written out key by key, ascending: the meaning of a plan in its plainest
// form, for tests and tools. `picks` are the free picks of one head (ascending chunk indices, or
// tokens where the plan chooses tokens), empty if none.
std::vector<VisibleKey> ExpandPlan(const AttentionPlan& plan, int64_t i,
                                   const std::vector<int64_t>& picks);

// How many keys query `i` sees per head: ExpandPlan(...).size() for as many picks as there are
// candidates.
int64_t NumVisibleKeys(const AttentionPlan& plan, int64_t i);

// What multiplies the logits of query `i` in `layer` beside the scheme's own factor (Entropy-ABF,
// docs/methods.md, section 9.10).
float EntropyFactor(const AttentionPlan& plan, int64_t i, int layer);

}  // namespace folio
