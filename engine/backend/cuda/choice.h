#pragma once

#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {

// What the kernels that score and those that choose must agree on.

// A row of a launch, as blockIdx.x counts them.
struct ChoosingRow {
  int row;
  const Slice* s;  // null: padding
  int64_t i;       // its position
};
FOLIO_DEVICE ChoosingRow RowOf(const Step& step, const ChooseArgs& args) {
  const int row = args.first_row + static_cast<int>(blockIdx.x);
  const int slice = step.slice_of_row[row];
  if (slice < 0) return {row, nullptr, 0};
  const Slice& s = step.slices[slice];
  return {row, &s, s.first_position + row - s.row_begin};
}

// Scores of a row and head: of chunks 1, 2, ... or of the tokens that follow the sinks.
FOLIO_DEVICE float* ScoresOf(const Geometry& g, const ChooseArgs& args, int head) {
  return args.scores + (int64_t{blockIdx.x} * g.num_heads + head) * args.stride;
}

// How many chunks compete for the picks of a row: chunks 1 .. result.
FOLIO_DEVICE int64_t ChunkCandidates(const Slice& s, int64_t i) {
  bool covered = false;
  for (int n = 0; n < s.num_stages; ++n) {
    covered = covered || (s.stages[n].keys == Stage::kChunks && s.stages[n].CoversRow(i));
  }
  return covered ? ViewChunks(s.selection, i, i < s.prompt_tokens).candidates_end - 1 : 0;
}
// Whether the heads choose chunks in this layer, or take over what they chose in layer 0.
FOLIO_DEVICE bool ChoosesChunks(const Slice& s, int layer) {
  return s.selection.chunk_tokens > 0 &&
         (s.selection.share != ChunkSelection::Share::kLayers || layer == 0);
}

struct TokenCandidates {
  const Stage* stage;
  int64_t count;  // tokens num_sinks .. num_sinks + count - 1
};
FOLIO_DEVICE TokenCandidates TokensOf(const Slice& s, int64_t i, int layer) {
  TokenCandidates result = {nullptr, 0};
  for (int n = 0; n < s.num_stages; ++n) {
    const bool covers = s.stages[n].keys == Stage::kTopTokens && s.stages[n].CoversRow(i);
    if (covers) result.stage = &s.stages[n];
  }
  const bool chooses = ChoosesTokens(s.top_tokens, s.prompt_tokens, i, layer);
  if (result.stage == nullptr || !chooses) return result;
  const int64_t count = KeysOf(*result.stage, s.num_sinks, i).size();
  if (NumTokensTaken(s.top_tokens, count) > 0) result.count = count;
  return result;
}

}  // namespace folio::cuda
