#pragma once

#include <cstdint>
#include <vector>

#include "engine/types/coca_query.h"
#include "engine/types/param.h"

namespace folio {

using PositionSpec = MethodSpec<struct PositionSchemeTag>;

// What is known of a text when a scheme is resolved for it.
struct PositionRequest {
  // Prompt and answer; 0: not known (an upload).
  int64_t total_tokens = 0;
  // Part of the prompt is an uploaded document.
  bool has_document = false;
};

// How a model tells positions apart.
enum class PositionKind : uint8_t {
  kRope,
  kAlibi,       // a per-head slope on the distance (Press et al. 2022)
  kCocaSlack,   // collinear constrained attention (Zhu et al. 2023) as its authors' code has it
  kCocaStrict,  // with the query in norm form
  kByLayer,     // rotary, where layers see windows of their own (LayerViews)
};

// The rotary embedding of a checkpoint.
struct RopeModel {
  int head_dim = 0;
  // Elements of a head that are rotated.
  int rotary_dim = 0;
  double base = 10000.0;
  // Length of the pre-training, before any extension that the checkpoint's own scheme stands for.
  int original_length = 0;
  // max_position_embeddings.
  int trained_length = 0;
  // The scheme the checkpoint was made with; "plain" if its positions are not scaled.
  PositionSpec scheme{"plain", {}};
  // longrope: divisors of theta, [rotary_dim / 2] each; else empty.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
};

}  // namespace folio
