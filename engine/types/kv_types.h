#pragma once

#include <cstdint>

#include "engine/tensor/tensor_view.h"
#include "engine/types/limits.h"
#include "engine/types/model_shape.h"

namespace folio {

// Index of a frame in a frame pool; a frame holds one page of one or more sequences that share it.
using FrameId = int32_t;
inline constexpr FrameId kNoFrame = -1;

// How the KV cache lies in memory.
//
// A *KV frame* holds one page of `page_tokens` tokens for all layers and KV heads, as
// [num_layers][num_kv_heads] slices. A slice is one contiguous block, the unit of selection and
// transfer:
//   K fp32  [page_tokens/16][key_dim][16 tokens]
//   K bf16  [page_tokens/16][key_dim/2][16 tokens][2 dims]
//   V fp32  [page_tokens][dim]
//   V bf16  [page_tokens/2][dim][2 tokens]
// with dim = `padded_dim`, head_dim rounded up to 16 and filled with zeros. Most plans have K
// page-rotated: token j is rotated by j mod page_tokens, so a query at position p sees the page
// that starts at s with its own rotation p - s, and keys are never rotated again.
//
// With `paired_keys` (CoCA) both members of a rotated pair are the same number u before rotation:
// K holds u alone, head_dim / 2 numbers rounded up to 16, and is rotated when it is read.
//
// With `sealed_bits` that is how pages lie that are still written (bf16, in frames of their own);
// of a page that is complete a slice holds integers of 8 or 4 bits and fp32 scales, a number being
// its integer times its scale (docs/methods.md, section 14):
//   K int8  [page_tokens/16][key_dim/4][16 tokens][4 dims]
//   K int4  [page_tokens/16][key_dim/8][16 tokens][4 dims], each byte that of two int8 lines which
//           follow each other, the first in its low bits, 8 added to both
//   V int8  [page_tokens/4][dim][4 tokens]
//   V int4  [page_tokens/8][dim][4 tokens], likewise
//   scales of K [key_dim], of V [page_tokens]
//
// Queries that wait for their chunk to complete, rotated by their offset in it, lie in KV frames of
// their own, in the order of PendingRows.
//
// A *summary frame* holds [num_layers][num_heads] tiles, each with the summaries of kTile chunks as
// 16 keys of `dtype` lie, chunks in the place of tokens. Which chunks: SummaryLayout. With
// `coarse_summaries` the tiles of a layer are followed by copies of 8 bits, from which most chunks
// are left out without a look at the tiles themselves (backend/cpu/coarse_summary.h). Where a chunk
// has two summaries they mean nothing.
//   tiles   [num_heads][dim/4][16 chunks][4 dims]; in the first frame what all others are relative
//           to
//   scales  [num_heads] fp32
struct KvGeometry {
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int padded_dim = 0;
  int page_tokens = 0;
  DType dtype = DType::kF32;
  bool paired_keys = false;
  // Of a number in pages that are complete: 8 or 4, and dtype is bf16; 0: they stay as they are.
  int sealed_bits = 0;
  bool coarse_summaries = false;

  static KvGeometry Make(const ModelShape& shape, int page_tokens, DType dtype) {
    return {shape.num_layers,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            (shape.head_dim + 15) / 16 * 16,
            page_tokens,
            dtype,
            shape.paired_keys};
  }
  // As --kv-dtype calls the numbers of complete pages.
  const char* dtype_name() const {
    if (sealed_bits == 0) return DTypeName(dtype);
    return sealed_bits == 8 ? "int8" : "int4";
  }
  // Numbers that are stored of a key, padding included.
  int padded_key_dim() const { return paired_keys ? (head_dim / 2 + 15) / 16 * 16 : padded_dim; }
  // Of the keys of one slice, and of the values that follow.
  int64_t key_bytes() const { return int64_t{page_tokens} * padded_key_dim() * DTypeBytes(dtype); }
  int64_t value_bytes() const { return int64_t{page_tokens} * padded_dim * DTypeBytes(dtype); }
  int64_t slice_bytes() const { return key_bytes() + value_bytes(); }
  // Of a slice of a page that is complete: its integers, then its scales.
  int64_t sealed_key_bytes() const {
    return int64_t{page_tokens} * padded_key_dim() * sealed_bits / 8;
  }
  int64_t sealed_value_bytes() const { return int64_t{page_tokens} * padded_dim * sealed_bits / 8; }
  int64_t sealed_slice_bytes() const {
    if (sealed_bits == 0) return slice_bytes();
    return sealed_key_bytes() + sealed_value_bytes() + (padded_key_dim() + page_tokens) * 4;
  }
  int64_t sealed_frame_bytes() const { return sealed_slice_bytes() * num_slices(); }
  // Query heads that share a KV head.
  int group_size() const { return num_heads / num_kv_heads; }
  int num_slices() const { return num_layers * num_kv_heads; }
  int slice(int layer, int kv_head) const { return layer * num_kv_heads + kv_head; }
  int64_t slice_offset(int layer, int kv_head) const {
    return slice(layer, kv_head) * slice_bytes();
  }
  int64_t frame_bytes() const { return slice_bytes() * num_layers * num_kv_heads; }
  int64_t summary_tile_bytes() const { return int64_t{padded_dim} * kTile * DTypeBytes(dtype); }
  int64_t coarse_tile_bytes() const { return int64_t{padded_dim} * kTile; }
  // The 8-bit copies of a layer, in whole cache lines.
  int64_t coarse_layer_bytes() const {
    if (!coarse_summaries) return 0;
    return (num_heads * (coarse_tile_bytes() + 4) + 63) / 64 * 64;
  }
  int64_t summary_layer_bytes() const {
    return num_heads * summary_tile_bytes() + coarse_layer_bytes();
  }
  int64_t summary_offset(int layer, int head) const {
    return layer * summary_layer_bytes() + head * summary_tile_bytes();
  }
  // Of the 8-bit copies of a layer.
  int64_t coarse_offset(int layer) const { return summary_offset(layer, num_heads); }
  int64_t summary_frame_bytes() const { return summary_layer_bytes() * num_layers; }
};

// How rotated queries of one chunk lie in KV frames: rows of padded_dim numbers of the cache's
// dtype, [chunk token][layer][head], as many in a frame as fit.
struct PendingRows {
  explicit PendingRows(const KvGeometry& g)
      : rows_per_token(int64_t{g.num_layers} * g.num_heads),
        row_bytes(int64_t{g.padded_dim} * DTypeBytes(g.dtype)),
        rows_per_frame(g.frame_bytes() / row_bytes) {}

  // Frames that hold the first `num_tokens` tokens of a chunk.
  int64_t NumFrames(int64_t num_tokens) const {
    return (num_tokens * rows_per_token + rows_per_frame - 1) / rows_per_frame;
  }
  // The first frame with a row of this token.
  int64_t FrameOf(int64_t token) const { return token * rows_per_token / rows_per_frame; }

  int64_t rows_per_token = 0;
  int64_t row_bytes = 0;
  int64_t rows_per_frame = 0;
};

// Where frames of one pool lie: frame i starts at base + i * frame_bytes.
struct FrameMemory {
  std::byte* base = nullptr;
  int64_t frame_bytes = 0;

  std::byte* Frame(FrameId id) const { return base + int64_t{id} * frame_bytes; }
};

// Where pages lie. On the CPU the host's memory is the device's.
enum class Tier : uint8_t { kDevice, kHost, kDisk };

// One slice of a page.
struct SliceKey {
  FrameId frame = kNoFrame;
  int layer = 0;
  int kv_head = 0;
  int reader = 0;  // the place in its step of the sequence that reads it
  // By a pass over all pages: it is read again only after all the others.
  bool scanned = false;
};

// In a slot table: the slice is in no slot.
inline constexpr int32_t kNoSlot = 0;

// Where the slices of pages lie. All of them are in memory: each at its place in its frame. Or some
// are (slots != nullptr): each in the slot that the table says, which changes only between verbs
// and in SliceSource::Need.
struct SliceMemory {
  std::byte* base = nullptr;
  int64_t frame_bytes = 0;         // all in memory: of one frame
  int64_t slice_bytes = 0;         // from one slice of a frame, or one slot, to the next
  const int32_t* slots = nullptr;  // [frame][slice]
  int slices_per_frame = 0;

  // `slice` counts the slices of a page: layer * num_kv_heads + kv_head. REQUIRES: it is in memory.
  std::byte* Slice(FrameId frame, int slice) const {
    if (slots == nullptr) return base + int64_t{frame} * frame_bytes + slice * slice_bytes;
    return base + int64_t{slots[int64_t{frame} * slices_per_frame + slice]} * slice_bytes;
  }
};

}  // namespace folio
