#pragma once

#include <cstdint>

namespace folio {

// Bounds that more than one part relies on: those that check what comes from outside, those that
// lay out memory, and kernels. Plain, so that .cu files can include it.

// Tokens (or chunks) per tile: one vector of scores. Pages are made of whole tiles.
inline constexpr int kTile = 16;
inline constexpr int kMinPageTokens = kTile;
inline constexpr int kMaxPageTokens = 256;

inline constexpr int kMaxLayers = 512;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 256;

// Rows of one step.
inline constexpr int kMinStepTokens = 16;
inline constexpr int kMaxStepTokens = 65536;

// Stages of one attention plan.
inline constexpr int kMaxStages = 4;
// Tokens that a plan may keep beside the pages, and choose one by one.
inline constexpr int kMaxSinks = 1024;
inline constexpr int kMaxTopTokens = 4096;
// Chunks that a query sees without a choice: the first, the previous and its own.
inline constexpr int kNumForcedChunks = 3;

// At most so many alternatives are listed beside a token.
inline constexpr int kMaxTopLogprobs = 20;

}  // namespace folio
