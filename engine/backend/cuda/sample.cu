// Draws tokens from logits, or rates one: a block per row. A draw walks the tokens from the most
// likely one down (ties: the smaller id first) until a share of their weight is behind it. Nothing
// is sorted: the token at a place of that walk is found digit by digit, as in a radix sort. Weights
// are integers, so that sums do not depend on the order in which threads add.
#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kDigits = 256;
// A key is 32 bits of the logit and 24 of the id.
constexpr int kIdBits = 24;
constexpr int kKeyBits = 32 + kIdBits;
constexpr float kWeightOne = 1099511627776.0f;  // 2^40

using Wide = unsigned long long;

// Grows with the logit.
FOLIO_DEVICE uint32_t Sortable(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One row of logits and the block's scratch memory.
class RowSampler {
 public:
  FOLIO_DEVICE RowSampler(const SampleTask& task, const float* logits, int vocab_size)
      : task_(task), logits_(logits), vocab_size_(vocab_size) {
    histogram_ = DynamicShared<Wide>();
    found_ = histogram_ + kDigits;
    floats_ = reinterpret_cast<float*>(found_ + 2);
    ids_ = reinterpret_cast<int*>(floats_ + kThreads);
  }
  static int SharedBytes() {
    return static_cast<int>((kDigits + 2) * sizeof(Wide) +
                            kThreads * (sizeof(float) + sizeof(int)));
  }

  FOLIO_DEVICE void Run(SampleResult* out, TopLogprobs* tops) {
    if (!AllFinite()) {
      if (threadIdx.x == 0) *out = {0, 0.0f, 0};
      return;
    }
    int token = task_.token;
    if (task_.kind == SampleTask::kDraw) {
      token = Best();
      if (task_.temperature > 0 && token >= 0) token = Draw(token);
    }
    token = token < 0 ? 0 : token;
    float logprob = 0;
    if (task_.num_top >= 0) {
      const float norm = LogSumExp();
      logprob = logits_[token] - norm;
      Wide last = 0;
      for (int n = 0; n < task_.num_top; ++n) {
        const int best = Next(n == 0 ? nullptr : &last);
        if (threadIdx.x == 0) {
          tops->tokens[n] = best;
          tops->logprobs[n] = best < 0 ? 0.0f : logits_[best] - norm;
        }
        if (best >= 0) last = KeyOf(logits_[best], best);
      }
    }
    if (threadIdx.x == 0) *out = {token, logprob, 1};
  }

 private:
  FOLIO_DEVICE bool AllFinite() {
    float sum = 0;  // of zeros: NaN if one of them is infinity or NaN times 0
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) sum += logits_[i] * 0.0f;
    return BlockSum(sum, floats_) == 0.0f;
  }
  // Under penalty and edits; NaN for a token that may not be drawn.
  FOLIO_DEVICE float LogitAt(int id) const {
    if (task_.allowed != nullptr && (task_.allowed[id / 32] >> (id % 32) & 1u) == 0) return NAN;
    const LogitEdit* edit = task_.num_edits == 0 ? nullptr : EditOf(id);
    if (edit == nullptr) return Penalised(logits_[id], id);
    return Penalised(logits_[id] + edit->before, id) + edit->after;
  }
  FOLIO_DEVICE float Penalised(float logit, int id) const {
    if (task_.seen == nullptr || (task_.seen[id / 32] >> (id % 32) & 1u) == 0) return logit;
    return logit > 0 ? logit / task_.penalty : logit * task_.penalty;
  }
  // Null: it has none.
  FOLIO_DEVICE const LogitEdit* EditOf(int id) const {
    int begin = 0;
    int end = task_.num_edits;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (task_.edits[middle].token < id) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < task_.num_edits && task_.edits[begin].token == id ? &task_.edits[begin]
                                                                     : nullptr;
  }
  FOLIO_DEVICE static Wide KeyOf(float logit, int id) {
    return Wide{Sortable(logit)} << kIdBits | ((1u << kIdBits) - 1 - static_cast<unsigned>(id));
  }
  FOLIO_DEVICE static int IdOf(Wide key) {
    return static_cast<int>((1u << kIdBits) - 1 - (key & ((1u << kIdBits) - 1)));
  }
  FOLIO_DEVICE Wide WeightOf(float logit, float max) const {
    return static_cast<Wide>(expf((logit - max) / task_.temperature) * kWeightOne);
  }

  // The id that wins over the block; -1: nobody has one.
  FOLIO_DEVICE int Winner(float value, int id) {
    __syncthreads();
    floats_[threadIdx.x] = value;
    ids_[threadIdx.x] = id;
    __syncthreads();
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (static_cast<int>(threadIdx.x) < step) {
        const int other = threadIdx.x + step;
        const float theirs = floats_[other];
        const float mine = floats_[threadIdx.x];
        if (ids_[other] >= 0 && (ids_[threadIdx.x] < 0 || theirs > mine ||
                                 (theirs == mine && ids_[other] < ids_[threadIdx.x]))) {
          floats_[threadIdx.x] = theirs;
          ids_[threadIdx.x] = ids_[other];
        }
      }
      __syncthreads();
    }
    return ids_[0];
  }

  // The most likely token under penalty and edits.
  FOLIO_DEVICE int Best() {
    float best = 0;
    int id = -1;
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) {
      const float logit = LogitAt(i);
      if (logit != logit) continue;
      if (id < 0 || logit > best) {
        best = logit;
        id = i;
      }
    }
    return Winner(best, id);
  }

  // The most likely token by the model alone that comes after `last` in the walk.
  FOLIO_DEVICE int Next(const Wide* last) {
    float best = 0;
    int id = -1;
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) {
      const float logit = logits_[i];
      if (logit != logit || (last != nullptr && KeyOf(logit, i) >= *last)) continue;
      if (id < 0 || logit > best) {
        best = logit;
        id = i;
      }
    }
    return Winner(best, id);
  }

  FOLIO_DEVICE float LogSumExp() {
    float max = -INFINITY;
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) max = fmaxf(max, logits_[i]);
    __syncthreads();
    floats_[threadIdx.x] = max;
    __syncthreads();
    for (int t = 0; t < kThreads; ++t) max = fmaxf(max, floats_[t]);
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) {
      if (logits_[i] == logits_[i]) sum += expf(logits_[i] - max);
    }
    return max + logf(BlockSum(sum, floats_));
  }

  // What a walk counts.
  struct Walk {
    bool by_weight;
    Wide least_key;      // tokens below are left out
    float least_weight;  // likewise, the most likely one apart
    float max;
  };
  FOLIO_DEVICE Wide Count(const Walk& walk, float logit, Wide key) const {
    if (key < walk.least_key) return 0;
    if (!walk.by_weight) return 1;
    const Wide weight = WeightOf(logit, walk.max);
    const bool kept =
        logit == walk.max || static_cast<float>(weight) >= walk.least_weight * kWeightOne;
    return kept ? weight : 0;
  }
  FOLIO_DEVICE Wide Total(const Walk& walk) {
    __syncthreads();
    if (threadIdx.x == 0) found_[0] = 0;
    __syncthreads();
    Wide sum = 0;
    for (int i = threadIdx.x; i < vocab_size_; i += kThreads) {
      const float logit = LogitAt(i);
      if (logit == logit) sum += Count(walk, logit, KeyOf(logit, i));
    }
    atomicAdd(&found_[0], sum);
    __syncthreads();
    return found_[0];
  }

  // Key of the token that covers `target` in the walk: what comes before it counts at most
  // `target`, it and what comes before it more. REQUIRES: target < Total(walk).
  FOLIO_DEVICE Wide Find(const Walk& walk, Wide target) {
    Wide prefix = 0;
    for (int shift = kKeyBits - 8; shift >= 0; shift -= 8) {
      __syncthreads();
      for (int d = threadIdx.x; d < kDigits; d += kThreads) histogram_[d] = 0;
      __syncthreads();
      for (int i = threadIdx.x; i < vocab_size_; i += kThreads) {
        const float logit = LogitAt(i);
        if (logit != logit) continue;
        const Wide key = KeyOf(logit, i);
        if (shift + 8 < kKeyBits && key >> (shift + 8) != prefix) continue;
        const Wide count = Count(walk, logit, key);
        if (count > 0) atomicAdd(&histogram_[key >> shift & (kDigits - 1)], count);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int digit = kDigits - 1;
        while (digit > 0 && histogram_[digit] <= target) target -= histogram_[digit--];
        found_[0] = prefix << 8 | static_cast<unsigned>(digit);
        found_[1] = target;
      }
      __syncthreads();
      prefix = found_[0];
      target = found_[1];
    }
    return prefix;
  }

  FOLIO_DEVICE int Draw(int best) {
    Walk walk = {false, 0, 0.0f, LogitAt(best)};
    if (walk.max == -INFINITY) return best;  // all are masked
    if (task_.top_k > 0 && static_cast<Wide>(task_.top_k) < Total(walk)) {
      walk.least_key = Find(walk, task_.top_k - 1);
    }
    walk.by_weight = true;
    if (task_.top_p < 1.0f) {
      // Kept: every token before which less than this lies.
      const double share = static_cast<double>(task_.top_p) * static_cast<double>(Total(walk));
      const Wide limit = static_cast<Wide>(ceil(share));
      walk.least_key = Find(walk, limit > 0 ? limit - 1 : 0);
    }
    walk.least_weight = task_.min_p;
    const Wide kept = Total(walk);
    const Wide target = static_cast<Wide>(task_.uniform * static_cast<double>(kept));
    return IdOf(Find(walk, target < kept ? target : kept - 1));
  }

  const SampleTask& task_;
  const float* logits_;
  const int vocab_size_;
  Wide* histogram_;  // [kDigits]
  Wide* found_;      // [2]
  float* floats_;    // [kThreads]
  int* ids_;         // [kThreads]
};

FOLIO_KERNEL void __launch_bounds__(kThreads)
    SampleKernel(const SampleTask* tasks, const float* logits, int vocab_size, SampleResult* out,
                 TopLogprobs* tops) {
  BeginKernel();
  const SampleTask& task = tasks[blockIdx.x];
  if (task.kind == SampleTask::kNone) return;
  RowSampler(task, logits + int64_t{blockIdx.x} * vocab_size, vocab_size)
      .Run(&out[blockIdx.x], &tops[blockIdx.x]);
}

}  // namespace

void SampleTokens(Stream stream, const SampleTask* tasks, int num_tasks, const float* logits,
                  int vocab_size, SampleResult* out, TopLogprobs* tops) {
  Launch(SampleKernel, dim3{static_cast<unsigned>(num_tasks), 1, 1}, kThreads,
         RowSampler::SharedBytes(), stream, tasks, logits, vocab_size, out, tops);
}

}  // namespace folio::cuda
