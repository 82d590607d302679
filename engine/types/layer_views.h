#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "engine/types/rotary.h"

namespace folio {

// How single layers of a checkpoint see what the plan of a request shows them (Gemma 2 and 3;
// docs/methods.md, section 11.6).
struct LayerViews {
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  // Per layer: the last tokens that a query sees, itself included. Empty: all see all.
  std::vector<int64_t> windows;
  // Of layers with a window, instead of the plan's rotation; nothing: the plan's.
  std::optional<Rotary> window_rotary;
  // score_cap * tanh(logit / score_cap) takes the place of a logit; 0: no cap.
  float score_cap = 0;
  // Multiplies logits, beside 1 / sqrt(head_dim).
  float score_scale = 1;

  int64_t WindowOf(int layer) const { return windows.empty() ? kAll : windows[layer]; }
};

}  // namespace folio
