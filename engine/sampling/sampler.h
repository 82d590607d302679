#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/types/sampling.h"

namespace folio {

// Picks next tokens. A draw depends on logits, parameters, seed and the index of the token in its
// sequence only: never on the batch. Keeps scratch space; one per thread.
class Sampler {
 public:
  // Answers a task: a draw, or a log-probability. Looks whether all logits are finite.
  Sample Do(const LogitsTask& task, std::span<const float> logits);

  //   logits  [vocab], finite; not changed
  //   seen    null unless repetition_penalty != 1
  //   step    index of the new token in the answer
  //   num_top_logprobs  -1: no log-probabilities at all
  //   changes  of LogitsTask
  //   allowed  of LogitsTask; token 0 is drawn where it has no bit
  // Greedy ties: the smaller id. Order of filters: changes before the penalty, repetition penalty,
  // changes after it, allowed tokens, temperature, top-k, top-p, min-p.
  Sample Draw(std::span<const float> logits, const SamplingParams& params, const SeenTokens* seen,
              uint64_t step, int num_top_logprobs, std::span<const LogitChange> changes = {},
              const std::vector<uint32_t>* allowed = nullptr);

 private:
  struct Candidate {
    float logit;
    int32_t token;
    float weight;  // of DrawUnfiltered
  };
  static bool MoreLikely(const Candidate& a, const Candidate& b);
  int32_t DrawCandidate(std::span<const float> logits, const SamplingParams& params,
                        const SeenTokens* seen, uint64_t step, std::span<const LogitChange> changes,
                        const std::vector<uint32_t>* allowed);
  // The logits of all tokens under penalties and changes, then without those not allowed.
  void FillCandidates(std::span<const float> logits, float penalty, const SeenTokens* seen,
                      std::span<const LogitChange> changes, const std::vector<uint32_t>* allowed);
  int32_t DrawFiltered(const SamplingParams& params, uint64_t step);
  // DrawFiltered where no filter is on, without sorting all candidates.
  int32_t DrawUnfiltered(const SamplingParams& params, uint64_t step);
  void AddLogprobs(std::span<const float> logits, int num_top, Sample* sample);

  std::vector<Candidate> candidates_;
  std::vector<float> weights_;
};

// Uniform in [0, 1) from a seed and a counter (splitmix64 finaliser, Steele et al. 2014).
double UniformAt(uint64_t seed, uint64_t counter);

}  // namespace folio
