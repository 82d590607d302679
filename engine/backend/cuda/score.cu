// Scores of the chunks and of the single tokens that heads choose from. A warp takes 16 candidates
// side by side, as their summaries and keys lie; a row and head have as many warps as that
// needs, or as a grid can have, so that a long text is scored by the whole device even for one row.
#include "engine/backend/cuda/choice.h"

namespace folio::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTilesPerBlock = kWarps;

// A uniform number from what identifies a candidate (chunk_selector.cc: RandomScore).
FOLIO_DEVICE float RandomScore(int layer, int head, int64_t position, int64_t chunk) {
  const uint64_t z = static_cast<uint64_t>(chunk) + 0x9e3779b97f4a7c15u * (position + 1) +
                     0xd1b54a32d192ed03u * (uint64_t{static_cast<uint32_t>(layer)} << 32 | head);
  return static_cast<float>(SplitMix64(z) >> 40);
}

// Dimensions d and d + 1 of a lane's summary: one load where they are bf16.
template <Cache kCache>
FOLIO_DEVICE Pair TwoDimensions(const unsigned char* tile, int lane, int d) {
  if (kCache == Cache::kBf16) {
    const uint32_t bits = reinterpret_cast<const uint32_t*>(tile)[d / 2 * kTileTokens + lane];
    return {FromBits(bits << 16), FromBits(bits & 0xffff0000u)};
  }
  const float* numbers = reinterpret_cast<const float*>(tile) + d * kTileTokens + lane;
  return {numbers[0], numbers[kTileTokens]};
}

// Sum over every second pair of dimensions of a lane's <q, summary of its chunk>, or of Quest's
// bound.
template <Cache kCache>
FOLIO_DEVICE float PartOfScore(const Geometry& g, const Slice& s, int layer, int head,
                               const float* q, int64_t tile, int lane) {
  const auto place = SummaryLayoutOf(s.selection, g.group()).PlaceOf(tile, head, 0);
  const int column = lane % kTileTokens;
  const int begin = lane / kTileTokens * 2;
  const unsigned char* first = g.Summary(s.summaries[place.frame], layer, place.head);
  float score = 0;
  if (s.selection.scorer != ChunkSelection::Scorer::kQuest) {
#pragma unroll 4
    for (int d = begin; d < g.head_dim; d += 4) {
      const Pair x = TwoDimensions<kCache>(first, column, d);
      score += q[d] * x.x + q[d + 1] * x.y;
    }
    return score;
  }
  const unsigned char* second = g.Summary(s.summaries[place.frame + 1], layer, place.head);
#pragma unroll 4
  for (int d = begin; d < g.head_dim; d += 4) {
    const Pair high = TwoDimensions<kCache>(first, column, d);
    const Pair low = TwoDimensions<kCache>(second, column, d);
    score += fmaxf(q[d] * high.x, q[d] * low.x) + fmaxf(q[d + 1] * high.y, q[d + 1] * low.y);
  }
  return score;
}

// The tiles of a row and head that this warp takes: every TilesPerGrid-th one.
FOLIO_DEVICE int64_t FirstTile() {
  return int64_t{blockIdx.z} * kTilesPerBlock + threadIdx.x / kWarp;
}
FOLIO_DEVICE int64_t TilesPerGrid() { return int64_t{gridDim.z} * kTilesPerBlock; }

template <Cache kCache>
FOLIO_KERNEL void __launch_bounds__(kWarps* kWarp)
    ScoreChunksKernel(const __grid_constant__ Geometry g, const __grid_constant__ Step step,
                      const __grid_constant__ ChooseArgs args, int layer, const float* qkv) {
  BeginKernel();
  const int head = blockIdx.y;
  const ChoosingRow at = RowOf(step, args);
  if (at.s == nullptr || !ChoosesChunks(*at.s, layer)) return;
  const ChunkSelection& select = at.s->selection;
  if (select.order == ChunkSelection::Order::kLast) return;
  const int64_t size = ChunkCandidates(*at.s, at.i);
  if (size == 0 || FirstTile() * kTileTokens > size) return;
  int first_head = head;
  int num_heads = 1;
  if (select.share == ChunkSelection::Share::kGroup) {
    num_heads = g.group();
    first_head = head / num_heads * num_heads;
  } else if (select.share == ChunkSelection::Share::kLayer) {
    num_heads = g.num_heads;
    first_head = 0;
  }
  const int lane = threadIdx.x % kWarp;
  for (int64_t tile = FirstTile(); tile * kTileTokens <= size; tile += TilesPerGrid()) {
    const int64_t chunk = tile * kTileTokens + lane % kTileTokens;
    float score = 0;
    if (select.order == ChunkSelection::Order::kRandom) {
      score = lane < kTileTokens ? RandomScore(layer, first_head, at.i, chunk) : 0.0f;
    } else {
      for (int h = first_head; h < first_head + num_heads; ++h) {
        score += PartOfScore<kCache>(g, *at.s, layer, h, QueryOf(g, qkv, at.row, h), tile, lane);
      }
      score /= static_cast<float>(num_heads);
    }
    score += __shfl_xor_sync(kAllLanes, score, kTileTokens);
    if (lane < kTileTokens && chunk >= 1 && chunk <= size) {
      ScoresOf(g, args, head)[chunk - 1] = score;
    }
  }
}

template <Cache kCache>
FOLIO_KERNEL void __launch_bounds__(kWarps* kWarp)
    ScoreTokensKernel(const __grid_constant__ Geometry g, const __grid_constant__ Step step,
                      const __grid_constant__ ChooseArgs args, int layer, const float* qkv) {
  BeginKernel();
  const int head = blockIdx.y;
  const ChoosingRow at = RowOf(step, args);
  if (at.s == nullptr) return;
  const Slice& s = *at.s;
  const TokenCandidates candidates = TokensOf(s, at.i, layer);
  const int64_t end = s.num_sinks + candidates.count;
  const int64_t first_tile = s.num_sinks / kTileTokens + int64_t{blockIdx.z} * kTilesPerBlock;
  if (candidates.count == 0 || first_tile * kTileTokens >= end) return;
  // The query as it stands at the fixed distance: [half] pairs.
  float* q = DynamicShared<float>();
  const float* from = QueryOf(g, qkv, at.row, head);
  const int half = g.half();
  for (int m = threadIdx.x; m < half; m += blockDim.x) {
    Pair p = {from[m], from[m + half]};
    if (g.coca_query == CocaQuery::kNorm) {
      p.x = p.y = (p.x * p.x + p.y * p.y) / 2;
    } else if (g.coca_query == CocaQuery::kMean) {
      const float mean = (p.x + p.y) / 2;
      p.x = p.y = mean * mean;
    }
    p = Turn(p, candidates.stage->fixed, m, half, 1.0f);
    q[m] = p.x;
    q[m + half] = p.y;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int64_t tile = first_tile + threadIdx.x / kWarp; tile * kTileTokens < end;
       tile += TilesPerGrid()) {
    const int64_t begin = tile * kTileTokens;
    const int64_t token = begin + lane % kTileTokens;
    const int frame = s.pages[begin / g.page_tokens - s.first_page];
    const unsigned char* keys = g.Keys(frame, layer, head / g.group());
    const int in_page = static_cast<int>(token % g.page_tokens);
    float score = 0;
#pragma unroll 4
    for (int m = lane / kTileTokens; m < half; m += 2) {
      const Pair k = KeyPair<kCache>(g, keys, in_page, m, nullptr);
      score += k.x * q[m] + k.y * q[m + half];
    }
    score += __shfl_xor_sync(kAllLanes, score, kTileTokens);
    if (lane < kTileTokens && token >= s.num_sinks && token < end) {
      ScoresOf(g, args, head)[token - s.num_sinks] = score;
    }
  }
}

// The scores of a row begin inside of a tile.
dim3 GridOf(const Geometry& g, const ChooseArgs& args) {
  const int64_t tiles = args.stride / kTileTokens + 2;
  const int64_t blocks = (tiles + kTilesPerBlock - 1) / kTilesPerBlock;
  return {static_cast<unsigned>(args.num_rows), static_cast<unsigned>(g.num_heads),
          static_cast<unsigned>(blocks < kMaxGridYZ ? blocks : kMaxGridYZ)};
}

}  // namespace

void ScoreChunks(Stream stream, const Geometry& g, const Step& step, const ChooseArgs& args,
                 int layer, const float* qkv) {
  Launch(g.cache == Cache::kBf16 ? ScoreChunksKernel<Cache::kBf16> : ScoreChunksKernel<Cache::kF32>,
         GridOf(g, args), kWarps * kWarp, 0, stream, g, step, args, layer, qkv);
}

void ScoreTokens(Stream stream, const Geometry& g, const Step& step, const ChooseArgs& args,
                 int layer, const float* qkv) {
  Launch(g.cache == Cache::kBf16 ? ScoreTokensKernel<Cache::kBf16> : ScoreTokensKernel<Cache::kF32>,
         GridOf(g, args), kWarps * kWarp, g.head_dim * static_cast<int>(sizeof(float)), stream, g,
         step, args, layer, qkv);
}

}  // namespace folio::cuda
