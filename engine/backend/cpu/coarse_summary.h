#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/types/kv_types.h"
#include "engine/types/plan_reading.h"

namespace folio {

// Copies of chunk summaries in 8 bits (kv_types.h, KvGeometry::coarse_summaries). Keys of a channel
// have most of their mean in common, beside which they differ by little, in some channels by more
// than in others. So each element x_d of the summaries in a tile is
//   x_d = centre_d + scale * unit_d * (i_d + f_d),  |f_d| <= 1/2
// with an integer i_d, a scale of the tile, and centres and units of the stream's first tile, which
// are the same for all tiles of a head or, where the heads of a group have summaries in common, of
// a group. Chunks are compared by <q, x - centre>.

// Tiles that follow each other in a frame other than the stream's first one.
struct CoarseTiles {
  // Those from the place of `head` in the frame on.
  CoarseTiles(const KvGeometry& geometry, std::byte* frame, int layer, int head);

  std::byte* tiles;
  float* scales;  // one for each
};

// What the first frame has in the place of its tiles, beginning at that of `head`: of its 16 first
// summaries the mean, and units by how far they lie from it.
struct CoarseChannels {
  CoarseChannels(const KvGeometry& geometry, std::byte* first_frame, int layer, int head);

  float* centres;  // [padded_dim]
  float* units;    // [padded_dim]
};

// No summary's element is more than so many scales * units, so that what fp32 rounds of its
// products is little beside these.
inline constexpr float kMostScales = 4096.0f;

// Writes what `frame` has for the num_tiles tiles from the place of `head` on, once the last of
// their chunks has its summary; of the first frame, which is written first, the channels:
//   unit_d = max(size_d, mean of all sizes / 2, 1e-6),
//   size_d = max(sqrt(mean((x_d - centre_d)^2)), |centre_d| / 128)
// The scale of a tile is the largest of |x_d - centre_d| / unit_d / 127 and |x_d| / unit_d /
// kMostScales, and at least 1e-30; integers are rounded to nearest, ties to even. Where an element
// is not finite the scale is infinite and all integers are zero, so that a score of them is no
// number.
void MakeCoarseTiles(const KvGeometry& geometry, int num_tiles, std::byte* first_frame,
                     std::byte* frame, int layer, int head);

// The same for all of a frame of complete chunks.
void MakeCoarseFrame(const KvGeometry& geometry, const SummaryLayout& layout,
                     std::byte* first_frame, std::byte* frame);

// q [padded_dim] as it meets copies: with q' = q * units = u * (j + e), where u is max |q'| /
// 16256, j are integers and no |e| is above 1/2,
//   <q, x - centre> = scale * (u <j, i> + u <e, i> + <q', f>)
// whose second and third term are below 127 / 2 * padded_dim * u and sum |q'| / 2.
cpu::CoarseQuery MakeCoarseQuery(const KvGeometry& geometry, const float* q,
                                 const CoarseChannels& channels);

// Of how many tiles, from the first on, the copies are worth reading to choose num_picks chunks of
// num_chunks: those of complete frames where picks lie in few of them, else none.
int64_t NumCoarseTiles(const KvGeometry& geometry, const SummaryLayout& layout, int64_t num_chunks,
                       int64_t num_picks);

}  // namespace folio
