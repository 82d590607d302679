#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/types/kv_types.h"
#include "engine/types/plan_reading.h"

namespace folio {

// Tiles of a summary frame that follow each other, in 8 bits with scales in common (kv_types.h,
// KvGeometry::coarse_summaries). With c the mean of the summaries in the stream's first tile, which
// is the same for all tiles of a head, a chunk's summary x_d lies within scale_d / 2 of
// c_d + scale_d * integer_d. So chunks are compared by <q, x - c>: keys of a channel have most of
// their mean in common, beside which they differ by little.
struct CoarseTiles {
  // Those from the place of `head` in the frame on: the first of SummaryLayout::tiles_per_frame.
  CoarseTiles(const KvGeometry& geometry, std::byte* frame, int layer, int head);

  std::byte* tiles;
  uint16_t* scales;  // fp16 [padded_dim]
  float* magnitude;  // largest sum over d of |integer_d| of a chunk
};

// No summary's element is more than so many scales of its channel, so that what fp32 rounds of its
// products is little beside them.
inline constexpr float kMostScales = 4096.0f;

// Writes them once the last of their chunks has its summary; first_frame is that of the stream.
// With m_d the largest |x_d - c_d|, the scale is m_d / 127, or |x_d| / kMostScales where that is
// more, rounded up to fp16; the integers are (x_d - c_d) / scale_d rounded to nearest, ties to
// even. Where one of them is not finite the scale is infinite and all are zero, so that a score of
// them is no number.
void MakeCoarseTiles(const KvGeometry& geometry, int num_tiles, std::byte* first_frame,
                     std::byte* frame, int layer, int head);

// All tiles of a frame of complete chunks.
void MakeCoarseFrame(const KvGeometry& geometry, const SummaryLayout& layout,
                     std::byte* first_frame, std::byte* frame);

// Of how many tiles, from the first on, the copies are worth reading to choose num_picks chunks of
// num_chunks: those of complete frames where picks lie in few of them, else none.
int64_t NumCoarseTiles(const KvGeometry& geometry, const SummaryLayout& layout, int64_t num_chunks,
                       int64_t num_picks);

}  // namespace folio
