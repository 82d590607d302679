#include "engine/attention/visible_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace folio {
namespace {

using Keys = AttentionStage::Keys;
using Distance = AttentionStage::Distance;

// Appends keys [begin, end) whose first key is seen at distance `first_distance`.
void AppendRun(int64_t begin, int64_t end, int64_t first_distance, std::vector<VisibleKey>* keys) {
  for (int64_t j = begin; j < end; ++j) keys->push_back({j, first_distance - (j - begin)});
}

// The chosen chunks side by side, then the own chunk.
void ExpandChunks(const AttentionPlan& plan, int64_t i, const std::vector<int64_t>& picks,
                  std::vector<VisibleKey>* keys) {
  const int64_t width = plan.selection.chunk_tokens;
  const ChunkView view = ViewChunks(plan.selection, i, plan.IsPromptRow(i));
  std::vector<int64_t> chosen = picks;
  chosen.insert(chosen.end(), view.forced, view.forced + view.num_forced);
  std::sort(chosen.begin(), chosen.end());
  const int64_t query = static_cast<int64_t>(chosen.size()) * width + i % width;
  for (size_t slot = 0; slot < chosen.size(); ++slot) {
    AppendRun(chosen[slot] * width, (chosen[slot] + 1) * width,
              query - static_cast<int64_t>(slot) * width, keys);
  }
  AppendRun(view.own * width, view.own * width + view.own_tokens, i % width, keys);
}

int64_t DistanceOf(const AttentionStage& stage, int64_t i, int64_t j) {
  if (stage.distance == Distance::kPinned) return stage.distance_limit;
  return QueryPosition(stage, i) - j;
}

int64_t NumTopTokens(const AttentionPlan& plan, int64_t i, int64_t num_candidates) {
  if (!ChoosesTokens(plan, i, std::numeric_limits<int>::max())) return 0;
  return NumTokensTaken(plan.top_tokens, num_candidates);
}

}  // namespace

std::vector<VisibleKey> ExpandPlan(const AttentionPlan& plan, int64_t i,
                                   const std::vector<int64_t>& picks) {
  std::vector<VisibleKey> keys;
  for (const AttentionStage& stage : plan.stages) {
    if (!stage.CoversRow(i)) continue;
    if (stage.keys == Keys::kChunks) {
      ExpandChunks(plan, i, picks, &keys);
      continue;
    }
    const KeyRange range = KeysOf(stage, plan.retention.num_sinks, i);
    if (stage.keys == Keys::kTopTokens) {
      if (NumTopTokens(plan, i, range.size()) == 0) continue;
      for (int64_t j : picks) keys.push_back({j, stage.distance_limit});
      continue;
    }
    for (int64_t j = range.begin; j < range.end; ++j) {
      keys.push_back({j, DistanceOf(stage, i, j)});
    }
  }
  std::sort(keys.begin(), keys.end(),
            [](const VisibleKey& a, const VisibleKey& b) { return a.position < b.position; });
  return keys;
}

KeyCounts CountKeys(const AttentionPlan& plan, int64_t i) {
  KeyCounts counts;
  const auto choose = [&](int64_t candidates, int64_t taken, int64_t tokens_each) {
    counts.visible += taken * tokens_each;
    if (taken == 0 || taken == candidates) return;  // nothing to choose
    counts.picked += taken * tokens_each;
    if (plan.selection.order == ChunkSelection::Order::kBest) counts.candidates += candidates;
  };
  for (const AttentionStage& stage : plan.stages) {
    if (!stage.CoversRow(i)) continue;
    if (stage.keys == Keys::kChunks) {
      const ChunkView view = ViewChunks(plan.selection, i, plan.IsPromptRow(i));
      const int64_t width = plan.selection.chunk_tokens;
      counts.visible += view.num_forced * width + view.own_tokens;
      const int64_t picks = std::min<int64_t>(view.num_candidates(), plan.selection.num_free_picks);
      choose(view.num_candidates(), picks, width);
      continue;
    }
    const int64_t size = KeysOf(stage, plan.retention.num_sinks, i).size();
    if (stage.keys == Keys::kTopTokens) {
      choose(size, NumTopTokens(plan, i, size), 1);
    } else {
      counts.visible += size;
    }
  }
  return counts;
}

float EntropyFactor(const AttentionPlan& plan, int64_t i, int layer) {
  const EntropyScale& entropy = plan.entropy;
  if (entropy.base_length <= 1 || layer < entropy.first_layer) return 1.0f;
  const double seen = static_cast<double>(NumVisibleKeys(plan, i));
  return static_cast<float>(std::max(1.0, std::log(seen) / std::log(entropy.base_length)));
}

}  // namespace folio
