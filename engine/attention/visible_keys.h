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

// Whether query `i` chooses single tokens in `layer`.
inline bool ChoosesTokens(const AttentionPlan& plan, int64_t i, int layer) {
  return ChoosesTokens(plan.top_tokens, plan.prompt_tokens, i, layer);
}

// The plan of query `i` written out key by key, ascending: the meaning of a plan in its plainest
// form, for tests and tools. `picks` are the free picks of one head (ascending chunk indices, or
// tokens where the plan chooses tokens), empty if none.
std::vector<VisibleKey> ExpandPlan(const AttentionPlan& plan, int64_t i,
                                   const std::vector<int64_t>& picks);

// What a query meets per head, for as many picks as there are candidates.
struct KeyCounts {
  int64_t visible = 0;  // ExpandPlan(...).size()
  int64_t picked = 0;   // of these: the query's own choice, that the next one need not share
  // That are scored for it: representatives of chunks (without the index, which prompts do not
  // use), single tokens.
  int64_t candidates = 0;
};
KeyCounts CountKeys(const AttentionPlan& plan, int64_t i);

inline int64_t NumVisibleKeys(const AttentionPlan& plan, int64_t i) {
  return CountKeys(plan, i).visible;
}

// What multiplies the logits of query `i` in `layer` beside the scheme's own factor (Entropy-ABF,
// docs/methods.md, section 9.10).
float EntropyFactor(const AttentionPlan& plan, int64_t i, int layer);

}  // namespace folio
