#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/splitmix.h"

namespace folio {
namespace {

// log(sum(exp(logits))).
double LogSumExp(std::span<const float> logits) {
  float max = -std::numeric_limits<float>::infinity();
  for (float x : logits) max = std::max(max, x);
  double sum = 0;
  for (float x : logits) sum += std::exp(double{x} - max);
  return max + std::log(sum);
}

// Index of the largest logit, ties to the smaller.
int32_t ArgMax(std::span<const float> logits) {
  int32_t best = 0;
  float max = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > max) {
      max = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

bool HasBit(const std::vector<uint32_t>& bits, int32_t token) {
  return (bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

// ArgMax of those whose bit is set; 0 if none is.
int32_t ArgMaxOf(const std::vector<uint32_t>& allowed, std::span<const float> logits) {
  int32_t best = -1;
  for (size_t word = 0; word < allowed.size(); ++word) {
    for (uint32_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
      const auto token = static_cast<int32_t>(32 * word) + __builtin_ctz(bits);
      if (best < 0 || logits[token] > logits[best]) best = token;
    }
  }
  return best < 0 ? 0 : best;
}

// The sum of zeros is NaN if one of them was infinity or NaN times 0. Lanes, so that it is
// vectorised.
bool AllFinite(std::span<const float> logits) {
  constexpr size_t kLanes = 32;
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += logits[i + lane] * 0.0f;
  }
  for (; i < logits.size(); ++i) sums[0] += logits[i] * 0.0f;
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum == 0.0f;
}

}  // namespace

double UniformAt(uint64_t seed, uint64_t counter) {
  const uint64_t bits =
      SplitMix64(SplitMix64(seed + 0x9e3779b97f4a7c15ull) + 0x9e3779b97f4a7c15ull * (counter + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sample Sampler::Do(const LogitsTask& task, std::span<const float> logits) {
  if (!AllFinite(logits)) {
    Sample none;
    none.finite = false;
    return none;
  }
  if (task.sampling != nullptr) {
    std::span<const LogitChange> changes;
    if (task.changes != nullptr) changes = *task.changes;
    return Draw(logits, *task.sampling, task.seen, task.index, task.num_top_logprobs, changes,
                task.allowed);
  }
  Sample scored;
  scored.token = task.scored_token;
  AddLogprobs(logits, std::max(0, task.num_top_logprobs), &scored);
  return scored;
}

Sample Sampler::Draw(std::span<const float> logits, const SamplingParams& params,
                     const SeenTokens* seen, uint64_t step, int num_top_logprobs,
                     std::span<const LogitChange> changes, const std::vector<uint32_t>* allowed) {
  Sample sample;
  if (params.temperature == 0.0f && seen == nullptr && changes.empty()) {
    sample.token = allowed == nullptr ? ArgMax(logits) : ArgMaxOf(*allowed, logits);
  } else {
    sample.token = DrawCandidate(logits, params, seen, step, changes, allowed);
  }
  if (num_top_logprobs >= 0) AddLogprobs(logits, num_top_logprobs, &sample);
  return sample;
}

void Sampler::AddLogprobs(std::span<const float> logits, int num_top, Sample* sample) {
  const double norm = LogSumExp(logits);
  const auto logprob = [&](int32_t token) { return static_cast<float>(logits[token] - norm); };
  sample->logprob = logprob(sample->token);
  if (num_top == 0) return;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({logits[i], static_cast<int32_t>(i), 0.0f});
  }
  const size_t count = std::min<size_t>(num_top, candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(),
                    MoreLikely);
  for (size_t i = 0; i < count; ++i) {
    sample->top_logprobs.push_back({candidates_[i].token, logprob(candidates_[i].token)});
  }
}

bool Sampler::MoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

void Sampler::FillCandidates(std::span<const float> logits, float penalty, const SeenTokens* seen,
                             std::span<const LogitChange> changes,
                             const std::vector<uint32_t>* allowed) {
  const auto penalised = [penalty, seen](float logit, int32_t token) {
    if (seen == nullptr || !seen->Contains(token)) return logit;
    return logit > 0 ? logit / penalty : logit * penalty;
  };
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const int32_t token = static_cast<int32_t>(i);
    candidates_.push_back({penalised(logits[i], token), token, 0.0f});
  }
  for (const LogitChange& change : changes) {
    candidates_[change.token].logit =
        penalised(logits[change.token] + change.before, change.token) + change.after;
  }
  if (allowed == nullptr) return;
  std::erase_if(candidates_, [allowed](const Candidate& c) { return !HasBit(*allowed, c.token); });
}

int32_t Sampler::DrawCandidate(std::span<const float> logits, const SamplingParams& params,
                               const SeenTokens* seen, uint64_t step,
                               std::span<const LogitChange> changes,
                               const std::vector<uint32_t>* allowed) {
  FillCandidates(logits, params.repetition_penalty, seen, changes, allowed);
  if (candidates_.empty()) return 0;
  if (params.temperature == 0.0f) {
    return std::min_element(candidates_.begin(), candidates_.end(), MoreLikely)->token;
  }
  if (params.top_k == 0 && params.top_p == 1.0f && params.min_p == 0.0f) {
    return DrawUnfiltered(params, step);
  }
  size_t keep = candidates_.size();
  if (params.top_k > 0) keep = std::min<size_t>(keep, params.top_k);
  std::partial_sort(candidates_.begin(), candidates_.begin() + keep, candidates_.end(), MoreLikely);
  candidates_.resize(keep);
  return DrawFiltered(params, step);
}

int32_t Sampler::DrawFiltered(const SamplingParams& params, uint64_t step) {
  // Probabilities relative to the most likely candidate, which comes first.
  weights_.resize(candidates_.size());
  double total = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = std::exp((candidates_[i].logit - candidates_[0].logit) / params.temperature);
    total += weights_[i];
  }
  size_t keep = 0;
  double kept = 0;
  while (keep < candidates_.size() &&
         (keep == 0 || (kept < params.top_p * total && weights_[keep] >= params.min_p))) {
    kept += weights_[keep++];
  }
  double target = UniformAt(params.seed, step) * kept;
  for (size_t i = 0; i < keep; ++i) {
    target -= weights_[i];
    if (target < 0) return candidates_[i].token;
  }
  return candidates_[keep - 1].token;
}

int32_t Sampler::DrawUnfiltered(const SamplingParams& params, uint64_t step) {
  const auto best = std::min_element(candidates_.begin(), candidates_.end(), MoreLikely);
  const float max = best->logit;
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((candidate.logit - max) / params.temperature);
    total += candidate.weight;
  }
  double target = UniformAt(params.seed, step) * total;
  // The walk from the most likely candidate down ends in [begin, end). Of a sharp distribution it
  // ends among the first few.
  auto begin = candidates_.begin();
  auto end = candidates_.end();
  for (std::ptrdiff_t count = 256; end - begin > 16; count = (end - begin) / 2) {
    const auto middle = begin + std::min(count, (end - begin) / 2);
    std::nth_element(begin, middle, end, MoreLikely);
    double weight = 0;
    for (auto at = begin; at != middle; ++at) weight += at->weight;
    if (target < weight) {
      end = middle;
    } else {
      target -= weight;
      begin = middle;
    }
  }
  std::sort(begin, end, MoreLikely);
  // Rounding may leave some of the target: then it is the last one that can be drawn at all.
  int32_t drawn = begin->token;
  for (auto at = begin; at != end && at->weight > 0; ++at) {
    drawn = at->token;
    target -= at->weight;
    if (target < 0) break;
  }
  return drawn;
}

}  // namespace folio
