// Choice of chunks and of single tokens: scores into a workspace, then the best one by one. A block
// per row and head; ties go to the smaller index.
#include "engine/backend/cuda/kernel_math.h"
#include "engine/backend/cuda/kernels.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 128;

// A uniform number from what identifies a candidate (chunk_selector.cc: RandomScore).
FOLIO_DEVICE float RandomScore(int layer, int head, int64_t position, int64_t chunk) {
  uint64_t z = static_cast<uint64_t>(chunk) + 0x9e3779b97f4a7c15u * (position + 1) +
               0xd1b54a32d192ed03u * (uint64_t{static_cast<uint32_t>(layer)} << 32 | head);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ (z >> 31)) >> 40);
}

// <q, representation of a chunk>, or Quest's bound.
FOLIO_DEVICE float ScoreChunk(const Geometry& g, const Slice& s, int layer, int head,
                              const float* q, int64_t chunk) {
  const Selection& select = s.selection;
  const int lane = static_cast<int>(chunk % kTileTokens);
  const int* frames = s.summaries + chunk / kTileTokens * select.frames_per_tile;
  const float* first = g.Summary(frames[0], layer, head) + lane;
  float score = 0;
  if (select.scorer != Selection::kQuest) {
    for (int d = 0; d < g.head_dim; ++d) score += q[d] * first[d * kTileTokens];
    return score;
  }
  const float* second = g.Summary(frames[1], layer, head) + lane;
  for (int d = 0; d < g.head_dim; ++d) {
    score += fmaxf(q[d] * first[d * kTileTokens], q[d] * second[d * kTileTokens]);
  }
  return score;
}

// The best `count` of scores [size], one after the other: index `begin` + place. Taken ones become
// minus infinity. All threads of the block.
FOLIO_DEVICE int TakeBest(float* scores, int64_t size, int64_t begin, int count, int64_t* ranked,
                          float* ranked_scores) {
  float* best = DynamicShared<float>();  // [kThreads]
  auto* at = reinterpret_cast<int*>(best + kThreads);
  const int taken = size < count ? static_cast<int>(size) : count;
  for (int n = 0; n < taken; ++n) {
    float mine = -INFINITY;
    int place = -1;
    for (int64_t c = threadIdx.x; c < size; c += kThreads) {
      // Ascending: equals keep the earlier one. A place not taken yet beats none.
      if (place < 0 ? scores[c] > -INFINITY : scores[c] > mine) {
        mine = scores[c];
        place = static_cast<int>(c);
      }
    }
    best[threadIdx.x] = mine;
    at[threadIdx.x] = place;
    __syncthreads();
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (static_cast<int>(threadIdx.x) < step) {
        const int other = threadIdx.x + step;
        const bool wins =
            at[other] >= 0 && (at[threadIdx.x] < 0 || best[other] > best[threadIdx.x] ||
                               (best[other] == best[threadIdx.x] && at[other] < at[threadIdx.x]));
        if (wins) {
          best[threadIdx.x] = best[other];
          at[threadIdx.x] = at[other];
        }
      }
      __syncthreads();
    }
    if (threadIdx.x == 0 && at[0] >= 0) {
      ranked[n] = begin + at[0];
      ranked_scores[n] = best[0];
      scores[at[0]] = -INFINITY;
    }
    __syncthreads();
  }
  return taken;
}

// chosen = ranked in ascending order.
FOLIO_DEVICE void SortAscending(const int64_t* ranked, int count, int64_t* chosen) {
  if (threadIdx.x != 0) return;
  for (int n = 0; n < count; ++n) {
    int at = n;
    for (; at > 0 && chosen[at - 1] > ranked[n]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = ranked[n];
  }
}

// What the last row of a slice chose, where somebody asks for it.
FOLIO_DEVICE void WriteEvidence(const Geometry& g, const Slice& s, int layer, int head, int row,
                                int count, const int64_t* ranked, const float* scores) {
  if (s.evidence == nullptr || row != s.row_begin + s.num_rows - 1) return;
  const int capacity = s.selection.num_free_picks;
  EvidencePick* to = s.evidence + (int64_t{layer} * g.num_heads + head) * capacity;
  for (int n = threadIdx.x; n < capacity; n += blockDim.x) {
    to[n].chunk = n < count ? ranked[n] : -1;
    to[n].score = n < count ? scores[n] : 0.0f;
  }
}

FOLIO_KERNEL void ChooseChunksKernel(const __grid_constant__ Geometry g,
                                     const __grid_constant__ Step step,
                                     const __grid_constant__ Picks picks,
                                     const __grid_constant__ ChooseArgs args, int layer,
                                     const float* qkv) {
  BeginKernel();
  const int row = args.first_row + blockIdx.x;
  const int head = blockIdx.y;
  if (step.slice_of_row[row] < 0) return;
  const Slice& s = step.slices[step.slice_of_row[row]];
  const Selection& select = s.selection;
  if (select.chunk_tokens == 0) return;
  if (select.share == Selection::kLayers && layer > 0) {  // layer 0 has chosen
    return WriteEvidence(g, s, layer, head, row, 0, nullptr, nullptr);
  }
  const int64_t at = int64_t{row} * g.num_heads + head;
  const int64_t i = s.first_position + row - s.row_begin;
  bool covered = false;
  for (int n = 0; n < s.num_stages; ++n) {
    covered = covered || (s.stages[n].keys == Stage::kChunks && s.stages[n].Covers(i));
  }
  int64_t* ranked = picks.ranked + at * picks.capacity;
  int64_t* chosen = picks.chosen + at * picks.capacity;
  float* ranked_scores = picks.scores + at * picks.capacity;
  const ChunkView view = ViewOf(select, i, i < s.prompt_tokens);
  const int64_t size = covered ? view.candidates_end - 1 : 0;
  int count = size < select.num_free_picks ? static_cast<int>(size) : select.num_free_picks;
  if (select.order == Selection::kLast) {
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
      ranked[n] = chosen[n] = view.candidates_end - count + n;
      ranked_scores[n] = 0;
    }
  } else {
    float* scores = args.scores + (int64_t{blockIdx.x} * g.num_heads + head) * args.stride;
    int first_head = head;
    int num_heads = 1;
    if (select.share == Selection::kGroup) {
      num_heads = g.group();
      first_head = head / num_heads * num_heads;
    } else if (select.share == Selection::kLayer) {
      num_heads = g.num_heads;
      first_head = 0;
    }
    for (int64_t c = threadIdx.x; c < size; c += blockDim.x) {
      float score = 0;
      if (select.order == Selection::kRandom) {
        score = RandomScore(layer, first_head, i, c + 1);
      } else {
        for (int h = first_head; h < first_head + num_heads; ++h) {
          score += ScoreChunk(g, s, layer, h, QueryOf(g, qkv, row, h), c + 1);
        }
        score /= static_cast<float>(num_heads);
      }
      scores[c] = score;
    }
    __syncthreads();
    count = TakeBest(scores, size, 1, select.num_free_picks, ranked, ranked_scores);
    SortAscending(ranked, count, chosen);
  }
  if (threadIdx.x == 0) picks.counts[at] = count;
  __syncthreads();
  WriteEvidence(g, s, layer, head, row, count, ranked, ranked_scores);
}

template <Cache kCache>
FOLIO_KERNEL void ChooseTokensKernel(const __grid_constant__ Geometry g,
                                     const __grid_constant__ Step step,
                                     const __grid_constant__ Picks tokens,
                                     const __grid_constant__ ChooseArgs args, int layer,
                                     const float* qkv) {
  BeginKernel();
  const int row = args.first_row + blockIdx.x;
  const int head = blockIdx.y;
  if (step.slice_of_row[row] < 0) return;
  const Slice& s = step.slices[step.slice_of_row[row]];
  const Selection& select = s.selection;
  const int64_t at = int64_t{row} * g.num_heads + head;
  const int64_t i = s.first_position + row - s.row_begin;
  const Stage* stage = nullptr;
  for (int n = 0; n < s.num_stages; ++n) {
    if (s.stages[n].keys == Stage::kTopTokens && s.stages[n].Covers(i)) stage = &s.stages[n];
  }
  int64_t size = 0;
  if (stage != nullptr && ChoosesTokens(s, i, layer)) {
    size = i - stage->band_begin + 1 - s.num_sinks;
    if (size < 0 || (select.top_all_or_none && size < select.top_count)) size = 0;
  }
  if (size == 0) {
    if (threadIdx.x == 0 && tokens.counts != nullptr) tokens.counts[at] = 0;
    return;
  }
  // The query as it stands at the fixed distance: [half] pairs.
  float* q = DynamicShared<float>() + 2 * kThreads;
  const float* from = QueryOf(g, qkv, row, head);
  const int half = g.half();
  for (int m = threadIdx.x; m < half; m += blockDim.x) {
    Pair p = {from[m], from[m + half]};
    if (g.query_form == QueryForm::kCocaNorm) {
      p.x = p.y = (p.x * p.x + p.y * p.y) / 2;
    } else if (g.query_form == QueryForm::kCocaMean) {
      const float mean = (p.x + p.y) / 2;
      p.x = p.y = mean * mean;
    }
    p = Turn(p, stage->fixed, m, half, 1.0f);
    q[m] = p.x;
    q[m + half] = p.y;
  }
  __syncthreads();
  float* scores = args.scores + (int64_t{blockIdx.x} * g.num_heads + head) * args.stride;
  const int kv_head = head / g.group();
  for (int64_t c = threadIdx.x; c < size; c += blockDim.x) {
    const int64_t token = s.num_sinks + c;
    const int frame = s.pages[token / g.page_tokens - s.first_page];
    const unsigned char* keys = g.Keys(frame, layer, kv_head);
    float score = 0;
    for (int m = 0; m < half; ++m) {
      const Pair k = KeyPair<kCache>(g, keys, static_cast<int>(token % g.page_tokens), m, nullptr);
      score += k.x * q[m] + k.y * q[m + half];
    }
    scores[c] = score;
  }
  __syncthreads();
  int64_t* ranked = tokens.ranked + at * tokens.capacity;
  const int count = TakeBest(scores, size, s.num_sinks, select.top_count, ranked,
                             tokens.scores + at * tokens.capacity);
  SortAscending(ranked, count, tokens.chosen + at * tokens.capacity);
  if (threadIdx.x == 0) tokens.counts[at] = count;
}

dim3 GridOf(const Geometry& g, const ChooseArgs& args) {
  return {static_cast<unsigned>(args.num_rows), static_cast<unsigned>(g.num_heads), 1};
}

constexpr int kBestBytes = kThreads * static_cast<int>(sizeof(float) + sizeof(int));

}  // namespace

void ChooseChunks(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                  const ChooseArgs& args, int layer, const float* qkv) {
  Launch(ChooseChunksKernel, GridOf(g, args), kThreads, kBestBytes, stream, g, step, picks, args,
         layer, qkv);
}

void ChooseTokens(Stream stream, const Geometry& g, const Step& step, const Picks& tokens,
                  const ChooseArgs& args, int layer, const float* qkv) {
  Launch(
      g.cache == Cache::kBf16 ? ChooseTokensKernel<Cache::kBf16> : ChooseTokensKernel<Cache::kF32>,
      GridOf(g, args), kThreads, kBestBytes + g.head_dim * static_cast<int>(sizeof(float)), stream,
      g, step, tokens, args, layer, qkv);
}

}  // namespace folio::cuda
