// Attention of single rows (decode) on tensor cores: a block per row, KV head and split; a warp
// takes a page, loads it once, straight from the cache in the form that the tensor cores want, and
// sees it with up to 16 queries of the group. With one query 15/16 of the products are wasted,
// which costs nothing: 16 FLOPs per byte are still far below what tensor cores do while a byte
// arrives.
#include "engine/backend/cuda/attend.h"
#include "engine/backend/cuda/tensor_core.h"
#include "engine/backend/cuda/tensor_shapes.h"

namespace folio::cuda {
namespace {

constexpr int kQueries = 16;

// One warp and up to 16 queries q [kQueries][kDim + kPad], scaled, un-rotated, times log2(e).
template <int kDim, int kBlockTokens>
class WarpRows {
 public:
  // Rows of a lane group land in other banks.
  static constexpr int kPad = 8;
  static constexpr int kStride = kDim + kPad;

  FOLIO_DEVICE WarpRows(const Geometry& g, const float* q, int num_heads, const float* slopes)
      : g_(g), q_(q), num_heads_(num_heads), slopes_(slopes) {
    state_.Clear();
  }

  FOLIO_DEVICE void See(const Visit& visit) {
    LoadQueries(visit);
    const int begin = visit.lo / kBlockTokens * kBlockTokens;
    for (int first = begin; first < visit.hi; first += kBlockTokens) SeeBlock(visit, first);
  }

  // states [num_heads][kDim + 2]: weighted values, maximum (base e), sum.
  FOLIO_DEVICE void Save(float* states) {
    state_.Finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int h = group() + 8 * r;
      if (h >= num_heads_) continue;
      float* to = states + h * (kDim + 2);
      state_.Store(0, r, 1.0f, to);
      if (place() == 0) {
        to[kDim] = state_.max[0][r] * kLn2;
        to[kDim + 1] = state_.sum[0][r];
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
        for (int r = 0; r < 2; ++r) {
          uint32_t low = 0;
          uint32_t high = 0;
          if (group() + 8 * r < num_heads_) {
            const float* q = q_ + (group() + 8 * r) * kStride + m;
            low = PackBf16(q[0] * first.cos - q[kHalf] * first.sin,
                           q[1] * second.cos - q[kHalf + 1] * second.sin);
            high = PackBf16(q[kHalf] * first.cos + q[0] * first.sin,
                            q[kHalf + 1] * second.cos + q[1] * second.sin);
          }
          queries_[s][2 * part + r] = low;
          queries_[s + kDim / 32][2 * part + r] = high;
        }
      }
    }
  }

  FOLIO_DEVICE static uint2 Load2(const uint32_t* at) {
    return *reinterpret_cast<const uint2*>(at);
  }
  FOLIO_DEVICE static uint4 Load4(const uint32_t* at) {
    return *reinterpret_cast<const uint4*>(at);
  }

  // Tokens [first, first + kBlockTokens) of the page.
  FOLIO_DEVICE void SeeBlock(const Visit& visit, int first) {
    constexpr int kTiles = kBlockTokens / kTileTokens;
    float scores[2 * kTiles][4] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = first + tile * kTileTokens;
      if (token >= visit.hi || token + kTileTokens <= visit.lo) continue;
      const uint32_t* keys = reinterpret_cast<const uint32_t*>(visit.keys) + token * kHalf;
#pragma unroll
      for (int s = 0; s < kDim / 16; ++s) {
        const uint2 b0 = Load2(keys + (8 * s + place()) * kTileTokens + 2 * group());
        const uint2 b1 = Load2(keys + (8 * s + 4 + place()) * kTileTokens + 2 * group());
        MmaBf16(scores[2 * tile], queries_[s], b0.x, b1.x);
        MmaBf16(scores[2 * tile + 1], queries_[s], b0.y, b1.y);
      }
    }
    Mask(visit, first, scores);
    state_.Weigh(0, scores);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = first + tile * kTileTokens;
      if (token >= visit.hi || token + kTileTokens <= visit.lo) continue;
      AddValues(visit, token, scores[2 * tile], scores[2 * tile + 1]);
    }
  }

  template <int kScores>
  FOLIO_DEVICE void Mask(const Visit& visit, int first, float (&scores)[kScores][4]) const {
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int h = group() + (c < 2 ? 0 : 8);
        const int token = first + n / 2 * kTileTokens + 4 * place() + 2 * (c % 2) + n % 2;
        const bool visible = token >= visit.lo && token < visit.hi && h < num_heads_ &&
                             (visit.head < 0 || visit.head == h);
        if (!visible) {
          scores[n][c] = -INFINITY;
        } else if (slopes_ != nullptr) {
          const int64_t distance = visit.pinned ? visit.distance : visit.distance - token;
          scores[n][c] -= slopes_[h] * kLog2E * static_cast<float>(distance);
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

  FOLIO_DEVICE void AddValues(const Visit& visit, int token, const float (&even)[4],
                              const float (&odd)[4]) {
    const uint32_t weights[4] = {PackBf16(even[0], odd[0]), PackBf16(even[2], odd[2]),
                                 PackBf16(even[1], odd[1]), PackBf16(even[3], odd[3])};
    const bool whole = visit.lo <= token && token + kTileTokens <= visit.hi;
    const int mine = token + 4 * place();
    const uint32_t* values =
        reinterpret_cast<const uint32_t*>(visit.values) + mine / 2 * kDim + 4 * group();
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      uint4 b0 = Load4(values + 32 * n);
      uint4 b1 = Load4(values + kDim + 32 * n);
      if (!whole) {
        b0 = {Visible(visit, mine, b0.x), Visible(visit, mine, b0.y), Visible(visit, mine, b0.z),
              Visible(visit, mine, b0.w)};
        b1 = {Visible(visit, mine + 2, b1.x), Visible(visit, mine + 2, b1.y),
              Visible(visit, mine + 2, b1.z), Visible(visit, mine + 2, b1.w)};
      }
      MmaBf16(state_.values[0][4 * n], weights, b0.x, b1.x);
      MmaBf16(state_.values[0][4 * n + 1], weights, b0.y, b1.y);
      MmaBf16(state_.values[0][4 * n + 2], weights, b0.z, b1.z);
      MmaBf16(state_.values[0][4 * n + 3], weights, b0.w, b1.w);
    }
  }

  const Geometry& g_;
  const float* q_;
  const int num_heads_;
  const float* slopes_;
  uint32_t queries_[kDim / 16][4];
  TileState<kDim, 1> state_;
};

template <int kDim, int kBlockTokens>
FOLIO_KERNEL void __launch_bounds__(kAttendWarps* kWarp)
    TensorRowsKernel(const __grid_constant__ AttendArgs a) {
  BeginKernel();
  using Warp = WarpRows<kDim, kBlockTokens>;
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
  Warp attention(g, q, num_heads, slopes);
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

template <int kDim, int kBlockTokens>
void LaunchRows(Stream stream, AttendArgs args, int num_splits) {
  const Geometry& g = args.g;
  args.head_blocks = (g.group() + kQueries - 1) / kQueries;
  const int heads = g.group() < kQueries ? g.group() : kQueries;
  const int floats = heads * (WarpRows<kDim, kBlockTokens>::kStride + kAttendWarps * (kDim + 2));
  const dim3 grid = {static_cast<unsigned>(args.step.tensor_rows.count),
                     static_cast<unsigned>(g.num_kv_heads * args.head_blocks),
                     static_cast<unsigned>(num_splits)};
  Launch(TensorRowsKernel<kDim, kBlockTokens>, grid, kAttendWarps * kWarp,
         floats * static_cast<int>(sizeof(float)), stream, args);
}

}  // namespace

void AttendTensorRows(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                      const Picks& tokens, int layer, const float* qkv, int num_splits,
                      float* partial, float* out) {
  const AttendArgs args = {g, step, picks, tokens, layer, 1, qkv, partial, out};
  WithTensorShape(g, [&]<int kDim, int kBlockTokens>() {
    LaunchRows<kDim, kBlockTokens>(stream, args, num_splits);
  });
  MergeSplits(stream, g, step.tensor_rows, num_splits, partial, out);
}

}  // namespace folio::cuda
