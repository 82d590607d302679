#include "engine/runtime/evidence.h"

#include <algorithm>
#include <numeric>

namespace folio {

void EvidenceCounter::Add(const ChunkPicks& picks, int num_layers) {
  const size_t per_layer = picks.picks.size() / num_layers;
  const int groups = std::min(kLayerGroups, num_layers);
  for (size_t i = 0; i < picks.picks.size(); ++i) {
    const int64_t chunk = picks.picks[i].chunk;
    if (chunk < 0) continue;
    const int layer = static_cast<int>(i / per_layer);
    Votes& votes = votes_[chunk];
    votes.resize(groups);
    ++votes[layer * groups / num_layers];
    ++num_choices_;
  }
}

EvidenceEvent EvidenceCounter::Report(int chunk_tokens, int64_t num_tokens,
                                      size_t max_spans) const {
  EvidenceEvent event;
  for (const auto& [chunk, votes] : votes_) {
    EvidenceEvent::Span span;
    span.token_begin = chunk * chunk_tokens;
    span.token_end = std::min(num_tokens, span.token_begin + chunk_tokens);
    span.votes_by_layer_group = votes;
    span.votes = std::accumulate(votes.begin(), votes.end(), int64_t{0});
    span.share = static_cast<double>(span.votes) / static_cast<double>(num_choices_);
    event.spans.push_back(std::move(span));
  }
  std::stable_sort(event.spans.begin(), event.spans.end(),
                   [](const auto& a, const auto& b) { return a.votes > b.votes; });
  if (event.spans.size() > max_spans) event.spans.resize(max_spans);
  return event;
}

}  // namespace folio
