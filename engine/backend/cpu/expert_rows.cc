#include "engine/backend/cpu/expert_rows.h"

#include <algorithm>
#include <cmath>

namespace folio {
namespace {

// The best of those that are not in `chosen` yet. Of scores that are NaN the first is as good as
// any.
int Best(std::span<const float> scores, std::span<const int> chosen) {
  int best = -1;
  for (int e = 0; e < static_cast<int>(scores.size()); ++e) {
    if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
    if (best < 0 || scores[e] > scores[best]) best = e;
  }
  return best;
}

}  // namespace

void ExpertRows::Choose(const float* scores, int num_rows, int num_experts, int num_chosen) {
  rows_.resize(num_experts);
  for (std::vector<Entry>& rows : rows_) rows.clear();
  weights_.resize(num_chosen);
  for (int row = 0; row < num_rows; ++row, scores += num_experts) {
    chosen_.clear();
    float sum = 0;
    for (int i = 0; i < num_chosen; ++i) {
      chosen_.push_back(Best({scores, static_cast<size_t>(num_experts)}, chosen_));
      weights_[i] = std::exp(scores[chosen_[i]] - scores[chosen_[0]]);
      sum += weights_[i];
    }
    for (int i = 0; i < num_chosen; ++i) rows_[chosen_[i]].push_back({row, weights_[i] / sum});
  }
}

}  // namespace folio
