// Summaries of complete chunks (chunk_summary.cc has the formulas). A block per chunk and
// head; all keys are seen as rotated by their offset in the chunk.
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/warp_attention.h"

namespace folio::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kQueries = 4;  // that share a load of a page
constexpr int kNumRepresentatives = 4;

struct SummarizeArgs {
  Geometry g;
  Step step;
  const ChunkTask* tasks;
  int layer;
  const float* qkv;
  float* scratch;  // [tasks][heads][kRowsOfScratch][scratch_tokens]
  int64_t scratch_tokens;
};

// What is kept per token of a chunk, which may be too long for shared memory.
constexpr int kRowsOfScratch = 1 + 2 * kWarps;

// One chunk and head, and the block's scratch memory.
template <Cache kCache>
class Summarizer {
 public:
  FOLIO_DEVICE Summarizer(const SummarizeArgs& a, const Slice& s, int64_t chunk, int head)
      : a_(a),
        g_(a.g),
        s_(s),
        chunk_(chunk),
        head_(head),
        w_(s.selection.chunk_tokens),
        num_pages_(w_ / a.g.page_tokens) {
    const int hd = g_.head_dim;
    float* next = DynamicShared<float>();
    scratch_ = Take(&next, kWarp);
    mean_ = Take(&next, hd);
    turned_mean_ = Take(&next, hd);
    warp_means_ = Take(&next, kWarps * hd);
    queries_ = Take(&next, kWarps * kQueries * hd);
    turned_ = Take(&next, kWarps * kQueries * hd);
    part_weights_ = Take(&next, kWarps * kQueries * PartTokens(g_));
    states_ = Take(&next, kWarps * kQueries * (hd + 2));
    next =
        a.scratch + (int64_t{blockIdx.x} * g_.num_heads + head) * kRowsOfScratch * a.scratch_tokens;
    weights_ = Take(&next, w_);
    masses_ = Take(&next, kWarps * w_);
    rows_ = Take(&next, kWarps * w_);
  }

  static int SharedFloats(const Geometry& g) {
    return kWarp + 2 * g.head_dim + kWarps * g.head_dim + 2 * kWarps * kQueries * g.head_dim +
           kWarps * kQueries * (PartTokens(g) + g.head_dim + 2);
  }

  FOLIO_DEVICE void Run() {
    switch (s_.selection.scorer) {
      case ChunkSelection::Scorer::kLongHeads:
        MeanOutput();
        ScoreByMean();
        Softmax();
        WriteWeightedKeys();
        break;
      case ChunkSelection::Scorer::kMeanKey:
        for (int t = threadIdx.x; t < w_; t += kThreads) {
          weights_[t] = 1.0f / static_cast<float>(w_);
        }
        __syncthreads();
        WriteWeightedKeys();
        break;
      case ChunkSelection::Scorer::kQuest:
        WriteExtremes();
        break;
      default:
        Masses();
        WriteRepresentatives();
        break;
    }
  }

 private:
  FOLIO_DEVICE static float* Take(float** next, int count) {
    float* result = *next;
    *next += count;
    return result;
  }
  FOLIO_DEVICE int warp() const { return threadIdx.x / kWarp; }
  FOLIO_DEVICE int lane() const { return threadIdx.x % kWarp; }
  FOLIO_DEVICE int Frame(int page) const {
    return s_.pages[chunk_ * num_pages_ + page - s_.first_page];
  }
  FOLIO_DEVICE const unsigned char* Keys(int page) const {
    return g_.Keys(Frame(page), a_.layer, head_ / g_.group());
  }
  // Pair m of the key of token t of a page, turned by its offset in the page.
  FOLIO_DEVICE Pair PageKey(int page, int t, int m) const {
    const float* turn = s_.raw_keys ? s_.summary_rope.positions.At(t, g_.half()) : nullptr;
    return KeyPair<kCache>(g_, Keys(page), t, m, turn);
  }
  FOLIO_DEVICE const float* TurnOfPage(int page) const {
    return s_.summary_rope.pages.At(page, g_.half());
  }

  // Query t of the chunk, turned by t and scaled. One warp.
  FOLIO_DEVICE void LoadQuery(int t, float* to) const {
    const int half = g_.half();
    const int64_t i = chunk_ * w_ + t;
    if (i < s_.first_position) {
      const unsigned char* from = g_.PendingRow(s_.pending, t, a_.layer, head_);
      for (int d = lane(); d < g_.head_dim; d += kWarp) {
        const float value = kCache == Cache::kBf16
                                ? FromBf16(reinterpret_cast<const uint16_t*>(from)[d])
                                : reinterpret_cast<const float*>(from)[d];
        to[d] = value * s_.summary_scale;
      }
      return;
    }
    const float* from =
        QueryOf(g_, a_.qkv, s_.row_begin + static_cast<int>(i - s_.first_position), head_);
    const float* turn = s_.summary_rope.positions.At(t, half);
    for (int m = lane(); m < half; m += kWarp) {
      const Pair p = Turn({from[m], from[m + half]}, turn, m, half, 1.0f);
      // As if it had been kept: how a prompt is cut into steps makes no difference.
      to[m] = InCache<kCache>(p.x) * s_.summary_scale;
      to[m + half] = InCache<kCache>(p.y) * s_.summary_scale;
    }
  }

  // mean_ = mean over the chunk's queries of their attention to all of the chunk.
  FOLIO_DEVICE void MeanOutput() {
    const int hd = g_.head_dim;
    float* queries = queries_ + warp() * kQueries * hd;
    float* turned = turned_ + warp() * kQueries * hd;
    float* weights = part_weights_ + warp() * kQueries * PartTokens(g_);
    float* states = states_ + warp() * kQueries * (hd + 2);
    float* mean = warp_means_ + warp() * hd;
    for (int d = lane(); d < hd; d += kWarp) mean[d] = 0;
    for (int first = warp() * kQueries; first < w_; first += kWarps * kQueries) {
      for (int n = 0; n < kQueries; ++n) LoadQuery(first + n, queries + n * hd);
      __syncwarp();
      WarpAttention<kCache, kQueries, 8> attention;
      attention.Start();
      for (int page = 0; page < num_pages_; ++page) {
        Visit visit = {};
        visit.keys = Keys(page);
        visit.values = g_.Values(Frame(page), a_.layer, head_ / g_.group());
        visit.hi = g_.page_tokens;
        visit.head = -1;
        visit.turn = page == 0 ? nullptr : TurnOfPage(page);
        visit.turn_sign = -1.0f;
        visit.turn_keys = s_.raw_keys;
        visit.pinned = true;
        attention.See(g_, s_.summary_rope, visit, kQueries, queries, nullptr, turned, weights);
      }
      attention.Save(g_, kQueries, states);
      __syncwarp();
      for (int d = lane(); d < hd; d += kWarp) {
        for (int n = 0; n < kQueries; ++n) {
          const float* state = states + n * (hd + 2);
          mean[d] += state[d] / state[hd + 1];
        }
      }
      __syncwarp();
    }
    __syncthreads();
    for (int d = threadIdx.x; d < hd; d += kThreads) {
      float sum = 0;
      for (int n = 0; n < kWarps; ++n) sum += warp_means_[n * hd + d];
      mean_[d] = sum / static_cast<float>(w_);
    }
    __syncthreads();
  }

  // weights_[t] = scale * <key t, mean_>
  FOLIO_DEVICE void ScoreByMean() {
    const int half = g_.half();
    for (int page = 0; page < num_pages_; ++page) {
      for (int m = threadIdx.x; m < half; m += kThreads) {
        const Pair p = Turn({mean_[m], mean_[m + half]}, TurnOfPage(page), m, half, -1.0f);
        turned_mean_[m] = p.x;
        turned_mean_[m + half] = p.y;
      }
      __syncthreads();
      for (int t = threadIdx.x; t < g_.page_tokens; t += kThreads) {
        float score = 0;
        for (int m = 0; m < half; ++m) {
          const Pair k = PageKey(page, t, m);
          score += k.x * turned_mean_[m] + k.y * turned_mean_[m + half];
        }
        weights_[page * g_.page_tokens + t] = score * s_.summary_scale;
      }
      __syncthreads();
    }
  }

  FOLIO_DEVICE void Softmax() {
    float max = -INFINITY;
    for (int t = 0; t < w_; ++t) max = fmaxf(max, weights_[t]);
    __syncthreads();
    float sum = 0;
    for (int t = threadIdx.x; t < w_; t += kThreads) {
      weights_[t] = expf(weights_[t] - max);
      sum += weights_[t];
    }
    sum = BlockSum(sum, scratch_);
    for (int t = threadIdx.x; t < w_; t += kThreads) weights_[t] /= sum;
    __syncthreads();
  }

  FOLIO_DEVICE void Write(int which, int m, Pair p) const {
    const auto place =
        SummaryLayoutOf(s_.selection, g_.group()).PlaceOf(chunk_ / kTileTokens, head_, which);
    unsigned char* tile = g_.Summary(s_.summaries[place.frame], a_.layer, place.head);
    const int lane = static_cast<int>(chunk_ % kTileTokens);
    SetKey<kCache>(tile, g_.dim, lane, m, p.x);
    SetKey<kCache>(tile, g_.dim, lane, m + g_.half(), p.y);
  }

  FOLIO_DEVICE void WriteWeightedKeys() const {
    for (int m = threadIdx.x; m < g_.half(); m += kThreads) {
      Pair sum = {0, 0};
      for (int page = 0; page < num_pages_; ++page) {
        Pair part = {0, 0};
        for (int t = 0; t < g_.page_tokens; ++t) {
          const Pair k = PageKey(page, t, m);
          const float weight = weights_[page * g_.page_tokens + t];
          part.x += weight * k.x;
          part.y += weight * k.y;
        }
        part = Turn(part, TurnOfPage(page), m, g_.half(), 1.0f);
        sum.x += part.x;
        sum.y += part.y;
      }
      Write(0, m, sum);
    }
  }

  FOLIO_DEVICE void WriteExtremes() const {
    for (int m = threadIdx.x; m < g_.half(); m += kThreads) {
      Pair high = {-INFINITY, -INFINITY};
      Pair low = {INFINITY, INFINITY};
      for (int page = 0; page < num_pages_; ++page) {
        for (int t = 0; t < g_.page_tokens; ++t) {
          const Pair k = Turn(PageKey(page, t, m), TurnOfPage(page), m, g_.half(), 1.0f);
          high = {fmaxf(high.x, k.x), fmaxf(high.y, k.y)};
          low = {fminf(low.x, k.x), fminf(low.y, k.y)};
        }
      }
      Write(0, m, high);
      Write(1, m, low);
    }
  }

  // masses_[t] = attention that token t gets from the chunk's queries at t and later.
  FOLIO_DEVICE void Masses() {
    const int hd = g_.head_dim;
    const int half = g_.half();
    float* query = queries_ + warp() * kQueries * hd;
    float* turned = turned_ + warp() * kQueries * hd;
    float* mass = masses_ + warp() * w_;
    float* row = rows_ + warp() * w_;
    for (int t = lane(); t < w_; t += kWarp) mass[t] = 0;
    for (int n = warp(); n < w_; n += kWarps) {
      LoadQuery(n, query);
      __syncwarp();
      float max = -INFINITY;
      for (int page = 0; page * g_.page_tokens <= n; ++page) {
        for (int m = lane(); m < half; m += kWarp) {
          const Pair p = Turn({query[m], query[m + half]}, TurnOfPage(page), m, half, -1.0f);
          turned[m] = p.x;
          turned[m + half] = p.y;
        }
        __syncwarp();
        for (int t = lane(); t < g_.page_tokens; t += kWarp) {
          const int at = page * g_.page_tokens + t;
          if (at > n) continue;
          float score = 0;
          for (int m = 0; m < half; ++m) {
            const Pair k = PageKey(page, t, m);
            score += k.x * turned[m] + k.y * turned[m + half];
          }
          row[at] = score;
          max = fmaxf(max, score);
        }
        __syncwarp();
      }
      max = WarpMax(max);
      float sum = 0;
      for (int t = lane(); t <= n; t += kWarp) {
        row[t] = expf(row[t] - max);
        sum += row[t];
      }
      sum = WarpSum(sum);
      for (int t = lane(); t <= n; t += kWarp) mass[t] += row[t] / sum;
      __syncwarp();
    }
    __syncthreads();
    for (int t = threadIdx.x; t < w_; t += kThreads) {
      float sum = 0;
      for (int n = 0; n < kWarps; ++n) sum += masses_[n * w_ + t];
      weights_[t] = sum;
    }
    __syncthreads();
  }

  // Mean un-rotated key of the tokens with most mass.
  FOLIO_DEVICE void WriteRepresentatives() const {
    int best[kNumRepresentatives];
    for (int n = 0; n < kNumRepresentatives; ++n) {
      best[n] = -1;
      for (int t = 0; t < w_; ++t) {
        bool taken = false;
        for (int b = 0; b < n; ++b) taken = taken || best[b] == t;
        if (!taken && (best[n] < 0 || weights_[t] > weights_[best[n]])) best[n] = t;
      }
    }
    for (int m = threadIdx.x; m < g_.half(); m += kThreads) {
      Pair sum = {0, 0};
      for (int n = 0; n < kNumRepresentatives; ++n) {
        const int t = best[n] % g_.page_tokens;
        Pair k = PageKey(best[n] / g_.page_tokens, t, m);
        k = Turn(k, s_.summary_rope.positions.At(t, g_.half()), m, g_.half(), -1.0f);
        sum.x += k.x / kNumRepresentatives;
        sum.y += k.y / kNumRepresentatives;
      }
      Write(0, m, sum);
    }
  }

  const SummarizeArgs& a_;
  const Geometry& g_;
  const Slice& s_;
  const int64_t chunk_;
  const int head_;
  const int w_;
  const int num_pages_;
  float* scratch_;       // [32]
  float* mean_;          // [head_dim]
  float* turned_mean_;   // [head_dim]
  float* warp_means_;    // [warps][head_dim]
  float* queries_;       // [warps][kQueries][head_dim]
  float* turned_;        // likewise
  float* part_weights_;  // [warps][kQueries][PartTokens]
  float* states_;        // [warps][kQueries][head_dim + 2]
  float* weights_;       // [w], in device memory like what follows
  float* masses_;        // [warps][w]
  float* rows_;          // [warps][w]
};

template <Cache kCache>
FOLIO_KERNEL void __launch_bounds__(kThreads)
    SummarizeKernel(const __grid_constant__ SummarizeArgs a) {
  BeginKernel();
  const ChunkTask& task = a.tasks[blockIdx.x];
  const Slice& s = a.step.slices[task.slice];
  const int head = blockIdx.y;
  // The first head of a group makes those that its heads share.
  if (!NeedsQueries(s.selection.scorer) && head % a.g.group() != 0) return;
  Summarizer<kCache>(a, s, task.chunk, head).Run();
}

}  // namespace

int64_t SummaryScratchFloats(const Geometry& g, int max_chunk_tokens) {
  return int64_t{g.num_heads} * kRowsOfScratch * max_chunk_tokens;
}

void Summarize(Stream stream, const Geometry& g, const Step& step, const ChunkTask* tasks,
               int num_tasks, int max_chunk_tokens, int layer, const float* qkv, float* scratch) {
  const SummarizeArgs args = {g, step, tasks, layer, qkv, scratch, max_chunk_tokens};
  const dim3 grid = {static_cast<unsigned>(num_tasks), static_cast<unsigned>(g.num_heads), 1};
  const int bytes = Summarizer<Cache::kF32>::SharedFloats(g) * static_cast<int>(sizeof(float));
  Launch(g.cache == Cache::kBf16 ? SummarizeKernel<Cache::kBf16> : SummarizeKernel<Cache::kF32>,
         grid, kThreads, bytes, stream, args);
}

}  // namespace folio::cuda
