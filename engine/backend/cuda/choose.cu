// The best chunks and tokens of those that score.cu has scored, one by one. A block per row and
// head; ties go to the smaller index.
#include "engine/backend/cuda/choice.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 128;

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
                                     const __grid_constant__ ChooseArgs args, int layer) {
  BeginKernel();
  const int head = blockIdx.y;
  const ChoosingRow choosing = RowOf(step, args);
  if (choosing.s == nullptr) return;
  const Slice& s = *choosing.s;
  const int row = choosing.row;
  const ChunkSelection& select = s.selection;
  if (!ChoosesChunks(s, layer)) {
    if (select.chunk_tokens > 0) WriteEvidence(g, s, layer, head, row, 0, nullptr, nullptr);
    return;
  }
  const int64_t at = int64_t{row} * g.num_heads + head;
  int64_t* ranked = picks.ranked + at * picks.capacity;
  int64_t* chosen = picks.chosen + at * picks.capacity;
  float* ranked_scores = picks.scores + at * picks.capacity;
  const int64_t size = ChunkCandidates(s, choosing.i);
  int count = size < select.num_free_picks ? static_cast<int>(size) : select.num_free_picks;
  if (select.order == ChunkSelection::Order::kLast) {
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
      ranked[n] = chosen[n] = size + 1 - count + n;
      ranked_scores[n] = 0;
    }
  } else {
    count =
        TakeBest(ScoresOf(g, args, head), size, 1, select.num_free_picks, ranked, ranked_scores);
    SortAscending(ranked, count, chosen);
  }
  if (threadIdx.x == 0) picks.counts[at] = count;
  __syncthreads();
  WriteEvidence(g, s, layer, head, row, count, ranked, ranked_scores);
}

FOLIO_KERNEL void ChooseTokensKernel(const __grid_constant__ Geometry g,
                                     const __grid_constant__ Step step,
                                     const __grid_constant__ Picks tokens,
                                     const __grid_constant__ ChooseArgs args, int layer) {
  BeginKernel();
  const int head = blockIdx.y;
  const ChoosingRow choosing = RowOf(step, args);
  if (choosing.s == nullptr) return;
  const Slice& s = *choosing.s;
  const int64_t at = int64_t{choosing.row} * g.num_heads + head;
  const int64_t size = TokensOf(s, choosing.i, layer).count;
  int64_t* ranked = tokens.ranked + at * tokens.capacity;
  const int count = TakeBest(ScoresOf(g, args, head), size, s.num_sinks, s.top_tokens.count, ranked,
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
                  const ChooseArgs& args, int layer) {
  Launch(ChooseChunksKernel, GridOf(g, args), kThreads, kBestBytes, stream, g, step, picks, args,
         layer);
}

void ChooseTokens(Stream stream, const Geometry& g, const Step& step, const Picks& tokens,
                  const ChooseArgs& args, int layer) {
  Launch(ChooseTokensKernel, GridOf(g, args), kThreads, kBestBytes, stream, g, step, tokens, args,
         layer);
}

}  // namespace folio::cuda
