#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/types/attention_plan.h"
#include "engine/types/request.h"

namespace folio {

// Counts which chunks the heads choose while an answer is made. A vote is one pick of one head in
// one layer for one token; the chunks that every query sees (the first, the previous and its own)
// get none. Engine thread only.
class EvidenceCounter {
 public:
  // Layers are reported in so many groups of about equal size.
  static constexpr int kLayerGroups = 4;

  // The picks for the token that is being answered.
  void Add(const ChunkPicks& picks, const ChunkSelection& selection, int num_layers);

  // The chunks with most votes, at most `max_spans`, the most first; ties: the earlier one. Spans
  // end at num_tokens at the latest. Text and tokens are left to the caller.
  std::vector<EvidenceEvent::Span> Spans(int chunk_tokens, int64_t num_tokens,
                                         size_t max_spans) const;

  // Every pick, layer by layer; empty if there was none.
  std::vector<EvidenceEvent::Layer> Layers() const;

 private:
  struct Count {
    int64_t votes = 0;
    int64_t first_votes = 0;
  };
  std::map<int64_t, std::vector<Count>> counts_;  // by chunk: [num_layers]
  int num_layers_ = 0;
  int64_t num_choices_ = 0;
};

}  // namespace folio
