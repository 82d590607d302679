#pragma once

#include <cstdint>

#include "engine/backend/cuda/simt.h"

namespace folio::cuda {

// What kernels are told. Plain data, copied to the device as it is.

inline constexpr int kTileTokens = 16;
inline constexpr int kMaxStages = 4;

enum class Cache : int { kF32, kBf16 };

// Values of CocaQuery.
enum class QueryForm : int { kPlain, kCocaRaw, kCocaNorm, kCocaMean };

// The KV cache as in kv_types.h.
struct Geometry {
  int num_layers;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int dim;      // padded
  int key_dim;  // padded, of stored keys
  int page_tokens;
  Cache cache;
  bool paired_keys;
  QueryForm query_form;
  int64_t key_bytes;
  int64_t slice_bytes;
  int64_t frame_bytes;
  int64_t summary_frame_bytes;
  const unsigned char* kv;
  unsigned char* summaries;
  const float* alibi_slopes;  // null: none

  FOLIO_HOST_DEVICE int half() const { return head_dim / 2; }
  FOLIO_HOST_DEVICE int group() const { return num_heads / num_kv_heads; }
  FOLIO_HOST_DEVICE int qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  FOLIO_HOST_DEVICE const unsigned char* Keys(int frame, int layer, int kv_head) const {
    return kv + frame * frame_bytes + (int64_t{layer} * num_kv_heads + kv_head) * slice_bytes;
  }
  FOLIO_HOST_DEVICE const unsigned char* Values(int frame, int layer, int kv_head) const {
    return Keys(frame, layer, kv_head) + key_bytes;
  }
  FOLIO_HOST_DEVICE float* Summary(int frame, int layer, int head) const {
    return reinterpret_cast<float*>(summaries + frame * summary_frame_bytes) +
           (int64_t{layer} * num_heads + head) * dim * kTileTokens;
  }
};

// cos [half] and sin [half] for multiples of a stride.
struct Rotations {
  const float* values;
  FOLIO_HOST_DEVICE const float* At(int64_t index, int half) const {
    return values + index * 2 * half;
  }
};

struct RopeTable {
  Rotations positions;  // 0, 1, ...
  Rotations pages;      // 0, page_tokens, ...
};

// Values of AttentionStage.
struct Stage {
  enum Keys : int { kContext, kSinks, kChunks, kTopTokens };
  enum Distance : int { kTrue, kPinned, kClamped, kCompacted };
  int keys;
  int distance;
  int64_t rows_begin;
  int64_t rows_end;
  int64_t band_begin;
  int64_t band_end;
  int64_t distance_limit;
  const float* fixed;  // rotation by distance_limit, if pinned

  FOLIO_HOST_DEVICE bool Covers(int64_t i) const { return rows_begin <= i && i < rows_end; }
};

// Values of ChunkSelection and TokenSelection.
struct Selection {
  enum Scorer : int { kLongHeads, kMeanKey, kQuest, kRepresentatives };
  enum Share : int { kNone, kGroup, kLayer, kLayers };
  enum Order : int { kBest, kLast, kRandom };
  int chunk_tokens;
  int num_free_picks;
  int scorer;
  int share;
  int order;
  bool first_chunk;
  bool prompt_skips_self;
  bool decode_boundary;
  int frames_per_tile;
  int top_count;
  int top_first_layer;
  bool top_all_rows;
  bool top_all_or_none;
};

// One sequence of a step.
struct Slice {
  int row_begin;
  int num_rows;
  int64_t first_position;
  int64_t prompt_tokens;
  int64_t first_page;
  const int* pages;
  const int* sinks;
  const int* summaries;
  int num_sinks;
  bool sinks_rotated;
  bool raw_keys;
  float scale;
  float summary_scale;
  int entropy_first_layer;
  RopeTable rope;
  RopeTable summary_rope;
  float* pending;
  Selection selection;
  int num_stages;
  Stage stages[kMaxStages];
};

// A step: slices, and what belongs to each row.
struct Step {
  int num_rows;
  int num_slices;
  const Slice* slices;
  const int* slice_of_row;
  const float* entropy_of_row;  // factor of the logits in layers from entropy_first_layer on
};

// What the heads chose for each row: chunks or tokens.
struct Picks {
  int capacity;
  int64_t* chosen;  // [rows][num_heads][capacity], ascending
  int64_t* ranked;  // [rows][num_heads][capacity], best first
  float* scores;    // of ranked
  int* counts;      // [rows][num_heads]
};

// What query i sees under a choice of chunks (visible_keys.h: ViewChunks).
struct ChunkView {
  int64_t own;
  int64_t own_tokens;
  int num_forced;
  int64_t forced[2];
  int64_t candidates_end;
};

FOLIO_HOST_DEVICE ChunkView ViewOf(const Selection& s, int64_t i, bool prompt_row) {
  const int64_t offset = i % s.chunk_tokens;
  ChunkView view = {};
  view.own = i / s.chunk_tokens;
  view.own_tokens = offset + (prompt_row && s.prompt_skips_self ? 0 : 1);
  const bool boundary = s.decode_boundary && !prompt_row && offset == s.chunk_tokens - 1;
  const int64_t previous = boundary ? view.own : view.own - 1;
  if (previous >= 1 && s.first_chunk) view.forced[view.num_forced++] = 0;
  if (!boundary && previous >= 0) view.forced[view.num_forced++] = previous;
  view.candidates_end = previous > 1 ? previous : 1;
  return view;
}

FOLIO_HOST_DEVICE bool ChoosesTokens(const Slice& s, int64_t i, int layer) {
  const Selection& select = s.selection;
  if (select.top_count == 0 || layer < select.top_first_layer) return false;
  return select.top_all_rows || i >= s.prompt_tokens - 1;
}

}  // namespace folio::cuda
