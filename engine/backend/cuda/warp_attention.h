#pragma once

#include "engine/backend/cuda/visit.h"

namespace folio::cuda {

// Tokens of a page whose weights a warp has in shared memory at once.
inline constexpr int kMaxPartTokens = 128;
FOLIO_HOST_DEVICE int PartTokens(const Geometry& g) {
  return g.page_tokens < kMaxPartTokens ? g.page_tokens : kMaxPartTokens;
}

// A warp's running softmax of up to kGroup queries over pages, of which it takes a part at a time.
// Lane l holds the weighted values of dimensions l, l + 32, ... of every query.
template <Cache kCache, int kGroup, int kPerLane>
class WarpAttention {
 public:
  FOLIO_DEVICE void Start() {
    for (int h = 0; h < kGroup; ++h) {
      max_[h] = -INFINITY;
      sum_[h] = 0;
      for (int k = 0; k < kPerLane; ++k) values_[k][h] = 0;
    }
  }

  // Folds one page in. q [num_heads][head_dim] scaled and un-rotated; `turned` as large and
  // `weights` [kGroup][PartTokens(g)] are scratch of this warp. `slopes` (ALiBi) may be null.
  FOLIO_DEVICE void See(const Geometry& g, const RopeTable& rope, const Visit& visit, int num_heads,
                        const float* q, const float* slopes, float* turned, float* weights) {
    const int begin = visit.head < 0 ? 0 : visit.head;
    const int end = visit.head < 0 ? num_heads : visit.head + 1;
    TurnQueries(g, visit, begin, end, q, turned);
    __syncwarp();
    for (int first = visit.lo / kMaxPartTokens * kMaxPartTokens; first < visit.hi;
         first += kMaxPartTokens) {
      const Part part = {first, visit.lo > first ? visit.lo : first,
                         visit.hi < first + kMaxPartTokens ? visit.hi : first + kMaxPartTokens};
      if (visit.turn_keys || g.paired_keys) {
        ScorePairs(g, rope, visit, part, begin, end, turned, weights);
      } else {
        ScoreLines(g, visit, part, begin, end, turned, weights);
      }
      __syncwarp();
      float keep[kGroup];
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        keep[h] = 1.0f;
        if (h >= begin && h < end) {
          keep[h] = Weigh(visit, part, slopes == nullptr ? 0.0f : slopes[h], h,
                          weights + h * PartTokens(g));
        }
      }
      __syncwarp();
      AddValues(g, visit, part, begin, end, weights, keep);
      __syncwarp();
    }
  }

  // states [kGroup][head_dim + 2]: weighted values, maximum, sum.
  FOLIO_DEVICE void Save(const Geometry& g, int num_heads, float* states) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      if (h >= num_heads) break;
      float* to = states + h * (g.head_dim + 2);
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        const int d = lane + k * kWarp;
        if (d < g.head_dim) to[d] = values_[k][h];
      }
      if (lane == 0) {
        to[g.head_dim] = max_[h];
        to[g.head_dim + 1] = sum_[h];
      }
    }
  }

 private:
  // Tokens [lo, hi) of a page; the weight of token t lies at t - first.
  struct Part {
    int first;
    int lo;
    int hi;
  };

  FOLIO_DEVICE void TurnQueries(const Geometry& g, const Visit& visit, int begin, int end,
                                const float* q, float* turned) const {
    const int half = g.half();
    for (int h = begin; h < end; ++h) {
      for (int m = threadIdx.x % kWarp; m < half; m += kWarp) {
        Pair p = {q[h * g.head_dim + m], q[h * g.head_dim + m + half]};
        if (visit.base != nullptr) p = Turn(p, visit.base, m, half, 1.0f);
        if (visit.turn != nullptr) p = Turn(p, visit.turn, m, half, visit.turn_sign);
        turned[h * g.head_dim + m] = p.x;
        turned[h * g.head_dim + m + half] = p.y;
      }
    }
  }

  // A lane sums every second pair of dimensions of one of 16 tokens: the loads of a warp are 128
  // consecutive bytes (bf16).
  FOLIO_DEVICE void ScoreLines(const Geometry& g, const Visit& visit, const Part& part, int begin,
                               int end, const float* turned, float* weights) const {
    const int lane = threadIdx.x % kWarp;
    for (int tile = part.lo / kTileTokens; tile * kTileTokens < part.hi; ++tile) {
      const int token = tile * kTileTokens + lane % kTileTokens;
      float scores[kGroup] = {};
      for (int pair = lane / kTileTokens; pair < g.head_dim / 2; pair += 2) {
        float k0;
        float k1;
        if (kCache == Cache::kBf16) {
          const uint32_t bits = reinterpret_cast<const uint32_t*>(
              visit.keys)[(tile * (g.key_dim / 2) + pair) * kTileTokens + lane % kTileTokens];
          k0 = FromBf16(bits & 0xffffu);
          k1 = FromBits(bits & 0xffff0000u);
        } else {
          k0 = KeyAt<kCache>(visit.keys, g.key_dim, token, 2 * pair);
          k1 = KeyAt<kCache>(visit.keys, g.key_dim, token, 2 * pair + 1);
        }
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          if (h < begin || h >= end) continue;
          const float* q = turned + h * g.head_dim + 2 * pair;
          scores[h] += k0 * q[0] + k1 * q[1];
        }
      }
      Keep(g, part, begin, end, token, scores, weights);
    }
  }

  // Keys that are turned when they are read.
  FOLIO_DEVICE void ScorePairs(const Geometry& g, const RopeTable& rope, const Visit& visit,
                               const Part& part, int begin, int end, const float* turned,
                               float* weights) const {
    const int lane = threadIdx.x % kWarp;
    const int half = g.half();
    for (int tile = part.lo / kTileTokens; tile * kTileTokens < part.hi; ++tile) {
      const int token = tile * kTileTokens + lane % kTileTokens;
      const float* turn = visit.turn_keys ? rope.positions.At(token, half) : nullptr;
      float scores[kGroup] = {};
      for (int m = lane / kTileTokens; m < half; m += 2) {
        const Pair k = KeyPair<kCache>(g, visit.keys, token, m, turn);
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          if (h < begin || h >= end) continue;
          const float* q = turned + h * g.head_dim + m;
          scores[h] += k.x * q[0] + k.y * q[half];
        }
      }
      Keep(g, part, begin, end, token, scores, weights);
    }
  }

  // Both halves of the warp have a part of the score of `token`.
  FOLIO_DEVICE void Keep(const Geometry& g, const Part& part, int begin, int end, int token,
                         float (&scores)[kGroup], float* weights) const {
    const bool visible = token >= part.lo && token < part.hi;
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
      if (h < begin || h >= end) continue;
      const float score = scores[h] + __shfl_xor_sync(kAllLanes, scores[h], kTileTokens);
      if (threadIdx.x % kWarp < kTileTokens) {
        weights[h * PartTokens(g) + token - part.first] = visible ? score : -INFINITY;
      }
    }
  }

  // Scores of a part become weights; returns the factor of what was summed before.
  FOLIO_DEVICE float Weigh(const Visit& visit, const Part& part, float slope, int h,
                           float* scores) {
    const int lane = threadIdx.x % kWarp;
    const int end = part.hi - part.first;
    float max = max_[h];
    for (int t = part.lo - part.first + lane; t < end; t += kWarp) {
      const int64_t distance = visit.pinned ? visit.distance : visit.distance - part.first - t;
      scores[t] -= slope * static_cast<float>(distance);
      max = fmaxf(max, scores[t]);
    }
    max = WarpMax(max);
    const float keep = expf(max_[h] - max);
    float sum = 0;
    for (int t = part.lo - part.first + lane; t < end; t += kWarp) {
      scores[t] = expf(scores[t] - max);
      sum += scores[t];
    }
    max_[h] = max;
    sum_[h] = sum_[h] * keep + WarpSum(sum);
    return keep;
  }

  FOLIO_DEVICE void AddValues(const Geometry& g, const Visit& visit, const Part& part, int begin,
                              int end, const float* weights, const float (&keep)[kGroup]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
#pragma unroll
      for (int h = 0; h < kGroup; ++h) values_[k][h] *= keep[h];
    }
    // In steps of two tokens, which bf16 values of a dimension share a word of.
    for (int first = part.lo / 2 * 2; first < part.hi; first += 2) {
      const bool has0 = first >= part.lo;
      const bool has1 = first + 1 < part.hi;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        const int d = lane + k * kWarp;
        if (d >= g.head_dim) break;
        float v0;
        float v1;
        if (kCache == Cache::kBf16) {
          const uint32_t bits =
              reinterpret_cast<const uint32_t*>(visit.values)[first / 2 * g.dim + d];
          v0 = FromBf16(bits & 0xffffu);
          v1 = FromBits(bits & 0xffff0000u);
        } else {
          v0 = ValueAt<kCache>(visit.values, g.dim, first, d);
          v1 = ValueAt<kCache>(visit.values, g.dim, first + 1, d);
        }
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          if (h < begin || h >= end) continue;
          const float* p = weights + h * PartTokens(g) + first - part.first;
          if (has0) values_[k][h] += p[0] * v0;
          if (has1) values_[k][h] += p[1] * v1;
        }
      }
    }
  }

  float max_[kGroup];
  float sum_[kGroup];
  float values_[kPerLane][kGroup];
};

// Several running softmaxes of one query, `stride` floats apart: [head_dim] values, maximum, sum.
struct Merged {
  float max;
  float sum;
};
// Of a state that saw nothing: 0.
FOLIO_DEVICE float FactorOf(float state_max, float max) {
  return state_max == -INFINITY ? 0.0f : expf(state_max - max);
}
FOLIO_DEVICE Merged MergeStates(const float* states, int count, int stride, int head_dim) {
  Merged merged = {-INFINITY, 0};
  for (int n = 0; n < count; ++n) merged.max = fmaxf(merged.max, states[n * stride + head_dim]);
  for (int n = 0; n < count; ++n) {
    const float* state = states + n * stride;
    merged.sum += state[head_dim + 1] * FactorOf(state[head_dim], merged.max);
  }
  return merged;
}
FOLIO_DEVICE float MergedValue(const float* states, int count, int stride, int head_dim,
                               const Merged& merged, int d) {
  float value = 0;
  for (int n = 0; n < count; ++n) {
    const float* state = states + n * stride;
    value += state[d] * FactorOf(state[head_dim], merged.max);
  }
  return value;
}

}  // namespace folio::cuda
