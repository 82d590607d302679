// Attention of single rows (decode) on tensor cores: a block per row, KV head and split; a warp
// takes a page, loads it once, straight from the cache in the form that the tensor cores want, and
// sees it with up to 16 queries of the group. Keys and values are the left operand and queries the
// right one, so that 8 queries are the least that a product takes: with one query 7/8 of the
// products are wasted, which costs nothing, as 8 FLOPs per byte are still far below what tensor
// cores do while a byte arrives.
#include "engine/backend/cuda/attend.h"
#include "engine/backend/cuda/tensor_core.h"
#include "engine/backend/cuda/tensor_shapes.h"

namespace folio::cuda {
namespace {

constexpr int kQueriesPerTile = 8;

// Running softmax of kTilesN x 8 queries in one warp, base 2: scores come multiplied by log2(e).
// Lane (g, t) keeps queries 2t and 2t + 1 of each 8, and of their weighted values the dimensions
// 32 n + 4 g + 2 j and the next in values[2 n + j][tile].
template <int kDim, int kTilesN>
struct RowState {
  float values[kDim / 16][kTilesN][4] = {};
  float max[kTilesN][2];
  float sum[kTilesN][2] = {};

  FOLIO_DEVICE RowState() {
#pragma unroll
    for (int tile = 0; tile < kTilesN; ++tile) max[tile][0] = max[tile][1] = -INFINITY;
  }

  // Turns scores [tokens / 16][tile][4], masked ones minus infinity, into weights.
  template <int kScores>
  FOLIO_DEVICE void Weigh(float (&scores)[kScores][kTilesN][4]) {
#pragma unroll
    for (int tile = 0; tile < kTilesN; ++tile) {
      const float keep[2] = {WeighQuery(tile, 0, scores), WeighQuery(tile, 1, scores)};
      // After some pages the maxima hardly ever move.
      if (keep[0] == 1.0f && keep[1] == 1.0f) continue;
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) values[n][tile][c] *= keep[c % 2];
      }
    }
  }

  // Of query 2t + j; returns the factor of what was summed before.
  template <int kScores>
  FOLIO_DEVICE float WeighQuery(int tile, int j, float (&scores)[kScores][kTilesN][4]) {
    float top = max[tile][j];
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      top = fmaxf(top, fmaxf(scores[n][tile][j], scores[n][tile][j + 2]));
    }
#pragma unroll
    for (int lanes = 4; lanes < kWarp; lanes *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
    }
    const float shift = top == -INFINITY ? 0.0f : top;
    const float keep = Exp2(max[tile][j] - shift);
    float added = 0;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int c = j; c < 4; c += 2) {
        scores[n][tile][c] = Exp2(scores[n][tile][c] - shift);
        added += scores[n][tile][c];
      }
    }
    // Each lane sums its own tokens; Finish adds them up.
    sum[tile][j] = sum[tile][j] * keep + added;
    max[tile][j] = top;
    return keep;
  }

  FOLIO_DEVICE void Finish() {
#pragma unroll
    for (int tile = 0; tile < kTilesN; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int lanes = 4; lanes < kWarp; lanes *= 2) {
          sum[tile][j] += __shfl_xor_sync(kAllLanes, sum[tile][j], lanes);
        }
      }
    }
  }
};

// One warp and up to kTilesN x 8 queries q [num_heads][kStride], scaled, un-rotated, times log2(e).
template <int kDim, int kBlockTokens, int kTilesN>
class WarpRows {
 public:
  // Rows of a lane group land in other banks.
  static constexpr int kStride = kDim + 8;

  FOLIO_DEVICE WarpRows(const float* q, int num_heads, const float* slopes)
      : q_(q), num_heads_(num_heads), slopes_(slopes) {}

  FOLIO_DEVICE void See(const Visit& visit) {
    LoadQueries(visit);
    const int begin = visit.lo / kBlockTokens * kBlockTokens;
    for (int first = begin; first < visit.hi; first += kBlockTokens) SeeBlock(visit, first);
  }

  // states [num_heads][kDim + 2]: weighted values, maximum (base e), sum.
  FOLIO_DEVICE void Save(float* states) {
    state_.Finish();
#pragma unroll
    for (int tile = 0; tile < kTilesN; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int h = tile * kQueriesPerTile + 2 * place() + j;
        if (h >= num_heads_) continue;
        float* to = states + h * (kDim + 2);
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
          float* pair = to + n / 2 * 32 + 4 * group() + n % 2 * 2;
          pair[0] = state_.values[n][tile][j];
          pair[1] = state_.values[n][tile][j + 2];
        }
        if (group() != 0) continue;
        to[kDim] = state_.max[tile][j] * kLn2;
        to[kDim + 1] = state_.sum[tile][j];
      }
    }
  }

 private:
  static constexpr int kHalf = kDim / 2;
  FOLIO_DEVICE static int group() { return threadIdx.x % kWarp / 4; }
  FOLIO_DEVICE static int place() { return threadIdx.x % 4; }

  struct Angle {
    float cos;
    float sin;
  };
  // The rotation of pair m: by the base, then by the turn.
  FOLIO_DEVICE static Angle AngleOf(const Visit& visit, int m) {
    Angle a = {1.0f, 0.0f};
    if (visit.base != nullptr) a = {visit.base[m], visit.base[kHalf + m]};
    if (visit.turn == nullptr) return a;
    const float c = visit.turn[m];
    const float s = visit.turn_sign * visit.turn[kHalf + m];
    return {a.cos * c - a.sin * s, a.sin * c + a.cos * s};
  }

  // queries_ = the queries as the visit sees them.
  FOLIO_DEVICE void LoadQueries(const Visit& visit) {
#pragma unroll
    for (int s = 0; s < kDim / 32; ++s) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int m = 16 * s + 8 * part + 2 * place();
        const Angle first = AngleOf(visit, m);
        const Angle second = AngleOf(visit, m + 1);
#pragma unroll
        for (int tile = 0; tile < kTilesN; ++tile) {
          uint32_t low = 0;
          uint32_t high = 0;
          const int h = tile * kQueriesPerTile + group();
          if (h < num_heads_) {
            const float* q = q_ + h * kStride + m;
            low = PackBf16(q[0] * first.cos - q[kHalf] * first.sin,
                           q[1] * second.cos - q[kHalf + 1] * second.sin);
            high = PackBf16(q[kHalf] * first.cos + q[0] * first.sin,
                            q[kHalf + 1] * second.cos + q[1] * second.sin);
          }
          queries_[s][tile][part] = low;
          queries_[s + kDim / 32][tile][part] = high;
        }
      }
    }
  }

  FOLIO_DEVICE static bool Sees(const Visit& visit, int token) {
    return token < visit.hi && token + kTileTokens > visit.lo;
  }

  // Tokens [first, first + kBlockTokens) of the page.
  FOLIO_DEVICE void SeeBlock(const Visit& visit, int first) {
    constexpr int kTiles = kBlockTokens / kTileTokens;
    PrefetchValues(visit, first);
    float scores[kTiles][kTilesN][4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = first + n * kTileTokens;
      if (Sees(visit, token)) Score(visit, token, scores[n]);
    }
    Mask(visit, first, scores);
    state_.Weigh(scores);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = first + n * kTileTokens;
      if (Sees(visit, token)) AddValues(visit, token, scores[n]);
    }
  }

  // They are on their way while the keys are multiplied.
  FOLIO_DEVICE static void PrefetchValues(const Visit& visit, int first) {
    constexpr int kLine = 128;
    const unsigned char* values = visit.values + first * kDim * 2;
#pragma unroll
    for (int at = 0; at < kBlockTokens * kDim * 2; at += kWarp * kLine) {
      const int line = at + static_cast<int>(threadIdx.x % kWarp) * kLine;
      if (line < (visit.hi - first) * kDim * 2) Prefetch(values + line);
    }
  }

  // Row g of the product is token 2g of the tile, row g + 8 token 2g + 1.
  FOLIO_DEVICE void Score(const Visit& visit, int token, float (&scores)[kTilesN][4]) const {
    const uint32_t* keys = reinterpret_cast<const uint32_t*>(visit.keys) + token * kHalf +
                           place() * kTileTokens + 2 * group();
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      const uint2 near = *reinterpret_cast<const uint2*>(keys + 8 * s * kTileTokens);
      const uint2 far = *reinterpret_cast<const uint2*>(keys + (8 * s + 4) * kTileTokens);
      const uint32_t a[4] = {near.x, near.y, far.x, far.y};
#pragma unroll
      for (int tile = 0; tile < kTilesN; ++tile) {
        MmaBf16(scores[tile], a, queries_[s][tile][0], queries_[s][tile][1]);
      }
    }
  }

  template <int kTiles>
  FOLIO_DEVICE void Mask(const Visit& visit, int first, float (&scores)[kTiles][kTilesN][4]) const {
    const bool whole = visit.lo <= first && first + kBlockTokens <= visit.hi;
    if (whole && visit.head < 0 && slopes_ == nullptr) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int tile = 0; tile < kTilesN; ++tile) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int h = tile * kQueriesPerTile + 2 * place() + c % 2;
          const int token = first + n * kTileTokens + 2 * group() + c / 2;
          float& score = scores[n][tile][c];
          if (token < visit.lo || token >= visit.hi || (visit.head >= 0 && visit.head != h)) {
            score = -INFINITY;
          } else if (slopes_ != nullptr && h < num_heads_) {
            const int64_t distance = visit.pinned ? visit.distance : visit.distance - token;
            score -= slopes_[h] * kLog2E * static_cast<float>(distance);
          }
        }
      }
    }
  }

  // A word of values without the tokens that are not visible: what lies there may be anything.
  FOLIO_DEVICE static uint32_t Visible(const Visit& visit, int token, uint32_t word) {
    if (token < visit.lo || token >= visit.hi) word &= 0xffff0000u;
    if (token + 1 < visit.lo || token + 1 >= visit.hi) word &= 0x0000ffffu;
    return word;
  }

  FOLIO_DEVICE void AddValues(const Visit& visit, int token, const float (&scores)[kTilesN][4]) {
    // Of tokens (4t, 4t + 1) and (4t + 2, 4t + 3), query g.
    uint32_t weights[kTilesN][2];
#pragma unroll
    for (int tile = 0; tile < kTilesN; ++tile) {
      const uint32_t even = Transpose8x8(PackBf16(scores[tile][0], scores[tile][1]));
      const uint32_t odd = Transpose8x8(PackBf16(scores[tile][2], scores[tile][3]));
      weights[tile][0] = (even & 0xffffu) | odd << 16;
      weights[tile][1] = even >> 16 | (odd & 0xffff0000u);
    }
    const bool whole = visit.lo <= token && token + kTileTokens <= visit.hi;
    const int mine = token + 4 * place();
    const uint32_t* values =
        reinterpret_cast<const uint32_t*>(visit.values) + mine / 2 * kDim + 4 * group();
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      uint4 near = *reinterpret_cast<const uint4*>(values + 32 * n);
      uint4 far = *reinterpret_cast<const uint4*>(values + kDim + 32 * n);
      if (!whole) {
        near = {Visible(visit, mine, near.x), Visible(visit, mine, near.y),
                Visible(visit, mine, near.z), Visible(visit, mine, near.w)};
        far = {Visible(visit, mine + 2, far.x), Visible(visit, mine + 2, far.y),
               Visible(visit, mine + 2, far.z), Visible(visit, mine + 2, far.w)};
      }
      const uint32_t first[4] = {near.x, near.y, far.x, far.y};
      const uint32_t second[4] = {near.z, near.w, far.z, far.w};
#pragma unroll
      for (int tile = 0; tile < kTilesN; ++tile) {
        MmaBf16(state_.values[2 * n][tile], first, weights[tile][0], weights[tile][1]);
        MmaBf16(state_.values[2 * n + 1][tile], second, weights[tile][0], weights[tile][1]);
      }
    }
  }

  const float* q_;
  const int num_heads_;
  const float* slopes_;
  uint32_t queries_[kDim / 16][kTilesN][2];
  RowState<kDim, kTilesN> state_;
};

template <int kDim, int kBlockTokens, int kTilesN>
FOLIO_KERNEL void __launch_bounds__(kAttendWarps* kWarp)
    TensorRowsKernel(const __grid_constant__ AttendArgs a) {
  BeginKernel();
  using Warp = WarpRows<kDim, kBlockTokens, kTilesN>;
  constexpr int kQueries = kTilesN * kQueriesPerTile;
  const Geometry& g = a.g;
  const int row = a.step.tensor_rows.rows[blockIdx.x];
  if (row < 0) return;
  const int kv_head = blockIdx.y / a.head_blocks;
  const int first_head = blockIdx.y % a.head_blocks * kQueries;  // in the group
  const int heads_left = g.group() - first_head;
  const int num_heads = heads_left < kQueries ? heads_left : kQueries;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const Slice& s = a.step.slices[a.step.slice_of_row[row]];

  float* q = DynamicShared<float>();
  float* states = q + num_heads * Warp::kStride;  // [warps][num_heads][kDim + 2]
  const float scale = ScaleOf(a.step, s, a.layer, row) * kLog2E;
  for (int h = warp; h < num_heads; h += kAttendWarps) {
    const float* from = QueryOf(g, a.qkv, row, kv_head * g.group() + first_head + h);
    for (int d = lane; d < kDim; d += kWarp) q[h * Warp::kStride + d] = from[d] * scale;
  }
  __syncthreads();

  const float* slopes =
      g.alibi_slopes == nullptr ? nullptr : g.alibi_slopes + kv_head * g.group() + first_head;
  Warp attention(q, num_heads, slopes);
  const Visits visits(g, s, a.picks, a.tokens, row, a.layer, kv_head);
  const int num_splits = gridDim.z;
  for (int64_t v = blockIdx.z + int64_t{num_splits} * warp; v < visits.count();
       v += int64_t{num_splits} * kAttendWarps) {
    Visit visit;
    if (!visits.Get(v, &visit)) continue;
    if (visit.head >= 0) {
      visit.head -= first_head;
      if (visit.head < 0 || visit.head >= num_heads) continue;
    }
    attention.See(visit);
  }
  attention.Save(states + warp * num_heads * (kDim + 2));
  __syncthreads();
  WriteRow(a, row, kv_head * g.group() + first_head, num_heads, num_heads, states);
}

template <int kDim, int kBlockTokens, int kTilesN>
void LaunchRows(Stream stream, AttendArgs args, int num_splits) {
  constexpr int kQueries = kTilesN * kQueriesPerTile;
  const Geometry& g = args.g;
  args.head_blocks = (g.group() + kQueries - 1) / kQueries;
  const int heads = g.group() < kQueries ? g.group() : kQueries;
  const int stride = WarpRows<kDim, kBlockTokens, kTilesN>::kStride;
  const int floats = heads * (stride + kAttendWarps * (kDim + 2));
  const dim3 grid = {static_cast<unsigned>(args.step.tensor_rows.count),
                     static_cast<unsigned>(g.num_kv_heads * args.head_blocks),
                     static_cast<unsigned>(num_splits)};
  Launch(TensorRowsKernel<kDim, kBlockTokens, kTilesN>, grid, kAttendWarps * kWarp,
         floats * static_cast<int>(sizeof(float)), stream, args);
}

}  // namespace

void AttendTensorRows(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                      const Picks& tokens, int layer, const float* qkv, int num_splits,
                      float* partial, float* out) {
  const AttendArgs args = {g, step, picks, tokens, layer, 1, qkv, partial, out};
  WithTensorShape(g, [&]<int kDim, int kBlockTokens>() {
    // Wide heads leave no registers for more.
    if (kDim > 128 || g.group() <= kQueriesPerTile) {
      LaunchRows<kDim, kBlockTokens, 1>(stream, args, num_splits);
    } else if constexpr (kDim <= 128) {
      LaunchRows<kDim, kBlockTokens, 2>(stream, args, num_splits);
    }
  });
  MergeSplits(stream, g, step.tensor_rows, num_splits, partial, out);
}

}  // namespace folio::cuda
