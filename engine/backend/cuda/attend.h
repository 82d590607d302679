#pragma once

#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/warp_attention.h"

namespace folio::cuda {

// Shared by the kernels that take rows one by one: a block per row, KV head (or a part of its
// group) and split of the visits.
struct AttendArgs {
  Geometry g;
  Step step;
  Picks picks;
  Picks tokens;
  int layer;
  int head_blocks;  // per KV head
  const float* qkv;
  float* partial;
  float* out;
};

inline constexpr int kAttendWarps = 4;

// The logits' factor of a row.
FOLIO_DEVICE float ScaleOf(const Step& step, const Slice& s, int layer, int row) {
  return layer >= s.entropy_first_layer ? s.scale * step.entropy_of_row[row] : s.scale;
}

// Merges what the warps of a block saw: states [kAttendWarps][heads_apart][head_dim + 2]. Writes
// the result, or the block's part of it where the visits are split: at the place of the row in its
// list.
FOLIO_DEVICE void WriteRow(const AttendArgs& a, int row, int first_head, int num_heads,
                           int heads_apart, const float* states) {
  const Geometry& g = a.g;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int num_splits = gridDim.z;
  const int stride = g.head_dim + 2;
  for (int h = warp; h < num_heads; h += kAttendWarps) {
    const float* of_head = states + h * stride;
    const Merged merged = MergeStates(of_head, kAttendWarps, heads_apart * stride, g.head_dim);
    const int64_t at = int64_t{row} * g.num_heads + first_head + h;
    const int64_t part = int64_t{blockIdx.x} * g.num_heads + first_head + h;
    const bool whole = num_splits == 1;
    float* to =
        whole ? a.out + at * g.head_dim : a.partial + (part * num_splits + blockIdx.z) * stride;
    const float factor = whole ? 1.0f / merged.sum : 1.0f;
    for (int d = lane; d < g.head_dim; d += kWarp) {
      to[d] =
          factor * MergedValue(of_head, kAttendWarps, heads_apart * stride, g.head_dim, merged, d);
    }
    if (!whole && lane == 0) {
      to[g.head_dim] = merged.max;
      to[g.head_dim + 1] = merged.sum;
    }
  }
}

}  // namespace folio::cuda
