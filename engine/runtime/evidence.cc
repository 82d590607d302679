#include "engine/runtime/evidence.h"

#include <algorithm>
#include <utility>

namespace folio {

void EvidenceCounter::Add(const ChunkPicks& picks, const ChunkSelection& selection,
                          int num_layers) {
  num_layers_ = num_layers;
  const size_t per_layer = picks.picks.size() / num_layers;
  for (size_t i = 0; i < picks.picks.size(); ++i) {
    const int64_t chunk = picks.picks[i].chunk;
    if (chunk < 0) continue;
    std::vector<Count>& counts = counts_[chunk];
    counts.resize(num_layers);
    Count& count = counts[i / per_layer];
    ++count.votes;
    if (i % selection.num_free_picks == 0) ++count.first_votes;
    ++num_choices_;
  }
}

std::vector<EvidenceEvent::Span> EvidenceCounter::Spans(int chunk_tokens, int64_t num_tokens,
                                                        size_t max_spans) const {
  const int groups = std::min(kLayerGroups, num_layers_);
  std::vector<EvidenceEvent::Span> spans;
  for (const auto& [chunk, counts] : counts_) {
    EvidenceEvent::Span span;
    span.token_begin = chunk * chunk_tokens;
    span.token_end = std::min(num_tokens, span.token_begin + chunk_tokens);
    span.votes_by_layer_group.resize(groups);
    for (int layer = 0; layer < num_layers_; ++layer) {
      span.votes += counts[layer].votes;
      span.votes_by_layer_group[layer * groups / num_layers_] += counts[layer].votes;
    }
    span.share = static_cast<double>(span.votes) / static_cast<double>(num_choices_);
    spans.push_back(std::move(span));
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto& a, const auto& b) { return a.votes > b.votes; });
  if (spans.size() > max_spans) spans.resize(max_spans);
  return spans;
}

std::vector<EvidenceEvent::Layer> EvidenceCounter::Layers() const {
  std::vector<EvidenceEvent::Layer> layers(num_layers_);
  for (const auto& [chunk, counts] : counts_) {
    for (int layer = 0; layer < num_layers_; ++layer) {
      const Count& count = counts[layer];
      if (count.votes == 0) continue;
      layers[layer].chunks.push_back({chunk, count.votes, count.first_votes});
    }
  }
  return layers;
}

}  // namespace folio
