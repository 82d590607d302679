#include "engine/attention/visible_keys.h"

#include <algorithm>

namespace folio {
namespace {

// Appends keys [begin, end) whose first key is seen at distance `first_distance`.
void AppendRun(int64_t begin, int64_t end, int64_t first_distance, std::vector<VisibleKey>* keys) {
  for (int64_t j = begin; j < end; ++j) keys->push_back({j, first_distance - (j - begin)});
}

// LongHeads: chunk 0, chunk o-1 and the picks side by side, then the own chunk up to the query.
void ExpandChunks(const ChunkSelection& selection, int64_t i, const std::vector<int64_t>& picks,
                  std::vector<VisibleKey>* keys) {
  const int64_t width = selection.chunk_tokens;
  const int64_t own = i / width;
  std::vector<int64_t> chosen = picks;
  if (own >= 1) chosen.push_back(0);
  if (own >= 2) chosen.push_back(own - 1);
  std::sort(chosen.begin(), chosen.end());
  const int64_t query = static_cast<int64_t>(chosen.size()) * width + i % width;
  for (size_t slot = 0; slot < chosen.size(); ++slot) {
    AppendRun(chosen[slot] * width, (chosen[slot] + 1) * width,
              query - static_cast<int64_t>(slot) * width, keys);
  }
  AppendRun(own * width, i + 1, i % width, keys);
}

// Half-open range of keys that a context or sink stage shows to query `i`.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

KeyRange RangeOf(const AttentionStage& stage, const Retention& retention, int64_t i) {
  KeyRange range;
  range.begin = stage.band_end > i ? 0 : i - stage.band_end + 1;
  range.end = std::max<int64_t>(0, i - stage.band_begin + 1);
  if (stage.keys == AttentionStage::Keys::kSinks) {
    range.end = std::min<int64_t>(range.end, retention.num_sinks);
  }
  range.end = std::max(range.begin, range.end);
  return range;
}

}  // namespace

std::vector<VisibleKey> ExpandPlan(const AttentionPlan& plan, int64_t i,
                                   const std::vector<int64_t>& picks) {
  std::vector<VisibleKey> keys;
  for (const AttentionStage& stage : plan.stages) {
    if (!stage.CoversRow(i)) continue;
    if (stage.keys == AttentionStage::Keys::kChunks) {
      ExpandChunks(plan.selection, i, picks, &keys);
      continue;
    }
    const KeyRange range = RangeOf(stage, plan.retention, i);
    const bool pinned = stage.distance == AttentionStage::Distance::kPinned;
    for (int64_t j = range.begin; j < range.end; ++j) {
      keys.push_back({j, pinned ? stage.pinned_distance : i - j});
    }
  }
  std::sort(keys.begin(), keys.end(),
            [](const VisibleKey& a, const VisibleKey& b) { return a.position < b.position; });
  return keys;
}

int64_t NumVisibleKeys(const AttentionPlan& plan, int64_t i) {
  int64_t count = 0;
  for (const AttentionStage& stage : plan.stages) {
    if (!stage.CoversRow(i)) continue;
    if (stage.keys == AttentionStage::Keys::kChunks) {
      const int64_t width = plan.selection.chunk_tokens;
      const int64_t own = i / width;
      const int64_t forced = std::min<int64_t>(own, 2);
      const int64_t picks = std::clamp<int64_t>(own - 2, 0, plan.selection.num_free_picks);
      count += (forced + picks) * width + i % width + 1;
    } else {
      const KeyRange range = RangeOf(stage, plan.retention, i);
      count += range.end - range.begin;
    }
  }
  return count;
}

}  // namespace folio
