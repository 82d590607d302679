#pragma once

#include <cstdint>

#include "engine/backend/cuda/simt.h"
#include "engine/types/coca_query.h"
#include "engine/types/limits.h"
#include "engine/types/plan_reading.h"

namespace folio::cuda {

// What kernels are told. Plain data, copied to the device as it is.

inline constexpr int kTileTokens = kTile;

enum class Cache : int { kF32, kBf16 };

// What slice_cache.cu counts, on the device.
struct SliceCounts {
  unsigned turn;    // of the layer and step that marks, from 1 on
  int num_missing;  // of its slices, those in no slot
  int num_taken;    // of them, those that have one now
  int hand;         // the slot after the one that was looked at last
};

// Pages that are at home in the host's memory, and the device's cache of their slices (HostTier).
// Slices are numbered page * slices_per_page + slice, slots from 1 on.
struct SliceCache {
  int num_slots;  // 0: every page lies in a frame
  const unsigned char* home;
  unsigned char* slots;
  int* slot_of;         // [slice]; 0: in none. -1, while the slices of a layer are marked: missing
  unsigned char* uses;  // [slice]; steps that needed it, as far as they count
  int64_t* owners;      // [slot + 1]: the slice that it was given to last
  unsigned* stamps;     // [slot + 1]: the turn that needed it last
  int64_t* missing;     // slices of the layer
  SliceCounts* counts;
  int* reads_of;  // [slice of the step][2]: hits and misses
};

// The KV cache as in kv_types.h. Page tables of a step hold, of each page, the frame in which it
// lies, or ~page where it is at home.
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
  CocaQuery coca_query;
  int64_t key_bytes;
  int64_t slice_bytes;
  int64_t frame_bytes;
  int64_t summary_frame_bytes;
  int64_t pending_row_bytes;
  int64_t pending_rows_per_frame;
  const unsigned char* kv;
  unsigned char* summaries;
  const float* alibi_slopes;  // null: none
  SliceCache slices;

  FOLIO_HOST_DEVICE int half() const { return head_dim / 2; }
  FOLIO_HOST_DEVICE int group() const { return num_heads / num_kv_heads; }
  FOLIO_HOST_DEVICE int qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  FOLIO_HOST_DEVICE int64_t SliceAtHome(int place, int layer, int kv_head) const {
    return (int64_t{~place} * num_layers + layer) * num_kv_heads + kv_head;
  }
  // `place` as page tables have it, or the frame of a sink.
  FOLIO_HOST_DEVICE const unsigned char* Keys(int place, int layer, int kv_head) const {
    const int64_t offset = (int64_t{layer} * num_kv_heads + kv_head) * slice_bytes;
    if (place >= 0) return kv + place * frame_bytes + offset;
    const int slot = Peek(&slices.slot_of[SliceAtHome(place, layer, kv_head)]);
    if (slot > 0) return slices.slots + (slot - 1) * slice_bytes;
    return slices.home + ~place * frame_bytes + offset;
  }
  FOLIO_HOST_DEVICE const unsigned char* Values(int place, int layer, int kv_head) const {
    return Keys(place, layer, kv_head) + key_bytes;
  }
  // kv_types.h: PendingRows.
  FOLIO_HOST_DEVICE unsigned char* PendingRow(const int* frames, int64_t token, int layer,
                                              int head) const {
    const int64_t row = (token * num_layers + layer) * num_heads + head;
    return const_cast<unsigned char*>(kv) + frames[row / pending_rows_per_frame] * frame_bytes +
           row % pending_rows_per_frame * pending_row_bytes;
  }
  // Lies as 16 keys do.
  FOLIO_HOST_DEVICE unsigned char* Summary(int frame, int layer, int head) const {
    return summaries + frame * summary_frame_bytes +
           (int64_t{layer} * num_heads + head) * dim * kTileTokens *
               (cache == Cache::kBf16 ? 2 : 4);
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

// A stage of a plan with what it looks up.
struct Stage : AttentionStage {
  using enum AttentionStage::Keys;
  using enum AttentionStage::Distance;
  const float* fixed;  // rotation by distance_limit, if pinned
};

// As ChunkPicks::Pick.
struct EvidencePick {
  int64_t chunk;
  float score;
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
  const int* pending;  // frames; null: its queries are not kept
  // Where the choices for the last row go, [num_layers][num_heads][num_free_picks]; null: nobody
  // asks.
  EvidencePick* evidence;
  int list_begin;  // of its chunks among Step::num_lists
  ChunkSelection selection;
  TokenSelection top_tokens;
  int num_stages;
  Stage stages[kMaxStages];
};

// LogitChange of types/sampling.h.
struct LogitEdit {
  int token;
  float before;
  float after;
};

// What is wanted of one row of logits (types/sampling.h).
struct SampleTask {
  enum Kind : int { kNone, kScore, kDraw };
  int kind;
  int row;      // of the step
  int token;    // that is scored
  int num_top;  // -1: no log-probabilities
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  float penalty;
  const uint32_t* seen;     // bits of tokens; null: no penalty
  const uint32_t* allowed;  // bits of tokens that may be drawn; null: all
  const LogitEdit* edits;   // [num_edits], ascending by token
  int num_edits;
  double uniform;  // in [0, 1)
};
struct SampleResult {
  int token;  // a valid id in any case
  float logprob;
  int finite;  // 0: a logit was not, and the rest means nothing
};
struct TopLogprobs {
  int tokens[kMaxTopLogprobs];  // -1: no more
  float logprobs[kMaxTopLogprobs];
};

// Rows that one kernel takes; -1 is padding.
struct RowList {
  const int* rows;
  int count;
};

// Consecutive rows of one slice that share their loads of keys and values.
struct Tile {
  int slice;
  int row_begin;
  int num_rows;
};

// A step: slices, and what belongs to each row.
struct Step {
  int num_rows;
  const Slice* slices;
  const int* slice_of_row;  // -1: padding
  const int* tokens;
  const float* entropy_of_row;  // factor of the logits in layers from entropy_first_layer on
  const SampleTask* samples;
  // How rows attend: one by one, with plain arithmetic or on tensor cores, or in tiles.
  RowList plain_rows;
  RowList tensor_rows;
  const Tile* tiles;
  int num_tiles;
  // Rows in tiles whose heads choose chunks, and the place of each row among them (-1: none).
  RowList choosing_rows;
  const int* choosing_place;
  // Rows that look at all pages that any row looks at; none where every page lies in a frame.
  RowList reading_rows;
  int num_lists;  // of chunks that rows in tiles may choose
};

// What the heads chose for each row: chunks or tokens.
struct Picks {
  int capacity;
  int64_t* chosen;  // [rows][num_heads][capacity], ascending
  int64_t* ranked;  // [rows][num_heads][capacity], best first
  float* scores;    // of ranked
  int* counts;      // [rows][num_heads]
};

}  // namespace folio::cuda
