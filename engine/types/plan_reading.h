#pragma once

#include <cstdint>

#include "engine/types/plan_parts.h"

namespace folio {

// What a plan means for one query, position i, written once for every backend. Constexpr functions
// over plain structs: .cu files include this header and call them on the device.

// Half-open range of keys.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  constexpr int64_t size() const { return end - begin; }
};

// Keys that a stage other than kChunks shows to query i, or lets it choose from.
constexpr KeyRange KeysOf(const AttentionStage& stage, int num_sinks, int64_t i) {
  KeyRange range;
  range.begin = stage.band_end > i ? 0 : i - stage.band_end + 1;
  range.end = i >= stage.band_begin ? i - stage.band_begin + 1 : 0;
  if (stage.keys == AttentionStage::Keys::kSinks && range.end > num_sinks) range.end = num_sinks;
  if (stage.keys == AttentionStage::Keys::kTopTokens && range.begin < num_sinks) {
    range.begin = num_sinks;
  }
  if (range.end < range.begin) range.end = range.begin;
  return range;
}

// Where query i stands under a stage whose distances are true or clamped.
constexpr int64_t QueryPosition(const AttentionStage& stage, int64_t i) {
  const bool clamped = stage.distance == AttentionStage::Distance::kClamped;
  return clamped && i > stage.distance_limit ? stage.distance_limit : i;
}

// Sinks are stored in the form that their stage reads: rotated by their offset in the page, or not.
constexpr bool SinksAreRotated(const AttentionStage& stage) {
  return stage.keys == AttentionStage::Keys::kSinks &&
         stage.distance == AttentionStage::Distance::kClamped;
}

// What query i sees under a choice of chunks: the forced chunks, those that compete for the free
// picks, and a part of its own chunk. The query stands at (number of chosen chunks) * chunk_tokens
// + i mod chunk_tokens.
struct ChunkView {
  int64_t own = 0;  // index of its own chunk
  int64_t own_tokens = 0;
  int num_forced = 0;
  int64_t forced[kNumForcedChunks - 1] = {};  // ascending
  int64_t candidates_begin = 1;
  int64_t candidates_end = 1;

  constexpr int64_t num_candidates() const { return candidates_end - candidates_begin; }
  // Whether chunk 0 is one of the forced.
  constexpr bool forces_first() const { return num_forced > 0 && forced[0] == 0; }
};
constexpr ChunkView ViewChunks(const ChunkSelection& selection, int64_t i, bool prompt_row) {
  const int64_t offset = i % selection.chunk_tokens;
  ChunkView view;
  view.own = i / selection.chunk_tokens;
  view.own_tokens = offset + (prompt_row && selection.prompt_skips_self ? 0 : 1);
  // In decode the released code takes a complete own chunk for "the last one".
  const bool boundary =
      selection.decode_boundary && !prompt_row && offset == selection.chunk_tokens - 1;
  const int64_t previous = boundary ? view.own : view.own - 1;
  if (previous >= 1 && selection.first_chunk) view.forced[view.num_forced++] = 0;
  if (!boundary && previous >= 0) view.forced[view.num_forced++] = previous;
  if (previous > 1) view.candidates_end = previous;
  return view;
}

// Most chunks that one head sees.
constexpr int ChunksPerHead(const ChunkSelection& selection) {
  return selection.num_free_picks + kNumForcedChunks;
}

// Whether summaries are made from the chunk's queries, which are kept until it is complete,
// not from its keys alone.
constexpr bool NeedsQueries(ChunkSelection::Scorer scorer) {
  return scorer == ChunkSelection::Scorer::kLongHeads ||
         scorer == ChunkSelection::Scorer::kRepresentatives;
}

// Where the summaries of a sequence's chunks lie in its summary frames (kv_types.h), which have one
// tile for each query head. Those made of keys alone are the same for all heads of a group: a KV
// head has them once, and uses its heads' tiles for chunks that follow each other.
struct SummaryLayout {
  int vectors = 1;          // per chunk, each in a frame of its own
  int tiles_per_frame = 1;  // that follow each other

  // A summary tile: the index of its frame among those of the sequence, and a head's place in it.
  struct Place {
    int64_t frame = 0;
    int head = 0;
  };
  // Tile `tile`, of chunks kTile * tile and on, for query head `head`.
  constexpr Place PlaceOf(int64_t tile, int head, int vector) const {
    return {tile / tiles_per_frame * vectors + vector,
            head - head % tiles_per_frame + static_cast<int>(tile % tiles_per_frame)};
  }
  constexpr int64_t ChunksPerFrame() const { return int64_t{kTile} * tiles_per_frame; }
  // Of so many complete chunks.
  constexpr int64_t NumFrames(int64_t num_chunks) const {
    return vectors * ((num_chunks + ChunksPerFrame() - 1) / ChunksPerFrame());
  }
  // Those before it have no room for another chunk.
  constexpr int64_t FirstOpenFrame(int64_t num_chunks) const {
    return vectors * (num_chunks / ChunksPerFrame());
  }
};

// `group_size`: query heads per KV head.
constexpr SummaryLayout SummaryLayoutOf(const ChunkSelection& selection, int group_size) {
  return {selection.scorer == ChunkSelection::Scorer::kQuest ? 2 : 1,
          NeedsQueries(selection.scorer) ? 1 : group_size};
}

// Whether query i chooses single tokens in `layer`. The last row of a prompt does, like those of
// the answer.
constexpr bool ChoosesTokens(const TokenSelection& selection, int64_t prompt_tokens, int64_t i,
                             int layer) {
  if (selection.count == 0 || layer < selection.first_layer) return false;
  return selection.all_rows || (prompt_tokens != kUnbounded && i >= prompt_tokens - 1);
}

// How many of `num_candidates` tokens a query takes that chooses.
constexpr int64_t NumTokensTaken(const TokenSelection& selection, int64_t num_candidates) {
  if (num_candidates >= selection.count) return selection.count;
  return selection.all_or_none || num_candidates < 0 ? 0 : num_candidates;
}

// The largest distance by which a stage turns queries up to position `last`; 0 where it covers none
// of them or pins the distance.
constexpr int64_t ReachOf(const AttentionStage& stage, const ChunkSelection& selection,
                          int64_t last) {
  if (last < stage.rows_begin) return 0;
  if (stage.keys == AttentionStage::Keys::kChunks) {
    return int64_t{ChunksPerHead(selection)} * selection.chunk_tokens;
  }
  if (stage.distance == AttentionStage::Distance::kPinned) return 0;
  if (last >= stage.rows_end) last = stage.rows_end - 1;
  last = QueryPosition(stage, last);
  return last < stage.band_end ? last : stage.band_end;
}

}  // namespace folio
