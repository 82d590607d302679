// Attention over ragged visits: one block per row, KV head and split; a warp takes a page, loads it
// once for the queries of the group, and keeps a running softmax (Milakov & Gimelshein 2018); the
// warps' and splits' results are merged by their maxima.
#include "engine/backend/cuda/attend.h"

namespace folio::cuda {
namespace {

constexpr int kWarps = kAttendWarps;

// The scaled query of one head, in the form in which it enters, un-rotated. One warp.
FOLIO_DEVICE void LoadQuery(const Geometry& g, const Slice& s, const float* q, int64_t i,
                            float scale, float* to) {
  const int half = g.half();
  for (int m = threadIdx.x % kWarp; m < half; m += kWarp) {
    Pair p = {q[m], q[m + half]};
    if (g.coca_query == CocaQuery::kNorm) {
      p.x = p.y = (p.x * p.x + p.y * p.y) / 2;
    } else if (g.coca_query == CocaQuery::kMean) {
      const float mean = (p.x + p.y) / 2;
      p.x = p.y = mean * mean;
    } else if (g.coca_query == CocaQuery::kRaw) {
      Pair turned = Turn(p, s.rope.pages.At(i / g.page_tokens, half), m, half, 1.0f);
      turned = Turn(turned, s.rope.positions.At(i % g.page_tokens, half), m, half, 1.0f);
      p = {p.x * turned.x, p.y * turned.y};
    }
    to[m] = p.x * scale;
    to[m + half] = p.y * scale;
  }
}

template <Cache kCache, int kGroup, int kPerLane>
FOLIO_KERNEL void __launch_bounds__(kWarps* kWarp)
    AttendKernel(const __grid_constant__ AttendArgs a) {
  BeginKernel();
  const Geometry& g = a.g;
  const int row = a.step.plain_rows.rows[blockIdx.x];
  if (row < 0) return;
  const int kv_head = blockIdx.y / a.head_blocks;
  const int first_head = blockIdx.y % a.head_blocks * kGroup;  // in the group
  const int heads_left = g.group() - first_head;
  const int num_heads = heads_left < kGroup ? heads_left : kGroup;
  const int split = blockIdx.z;
  const int num_splits = gridDim.z;
  const int warp = threadIdx.x / kWarp;
  const Slice& s = a.step.slices[a.step.slice_of_row[row]];
  const int64_t i = s.first_position + row - s.row_begin;

  float* q = DynamicShared<float>();                            // [kGroup][head_dim]
  float* states = q + kGroup * g.head_dim;                      // [kWarps][kGroup][head_dim + 2]
  float* turned = states + kWarps * kGroup * (g.head_dim + 2);  // [kWarps][kGroup][head_dim]
  float* weights = turned + kWarps * kGroup * g.head_dim;       // [kWarps][kGroup][PartTokens]
  turned += warp * kGroup * g.head_dim;
  weights += warp * kGroup * PartTokens(g);

  const float scale = ScaleOf(a.step, s, a.layer, row);
  for (int h = warp; h < num_heads; h += kWarps) {
    const int head = kv_head * g.group() + first_head + h;
    LoadQuery(g, s, QueryOf(g, a.qkv, row, head), i, scale, q + h * g.head_dim);
  }
  __syncthreads();

  WarpAttention<kCache, kGroup, kPerLane> attention;
  attention.Start();
  const Visits visits(g, s, a.picks, a.tokens, row, a.layer, kv_head);
  const float* slopes =
      g.alibi_slopes == nullptr ? nullptr : g.alibi_slopes + kv_head * g.group() + first_head;
  for (int64_t v = split + int64_t{num_splits} * warp; v < visits.count();
       v += int64_t{num_splits} * kWarps) {
    Visit visit;
    if (!visits.Get(v, &visit)) continue;
    if (visit.head >= 0) {
      visit.head -= first_head;
      if (visit.head < 0 || visit.head >= num_heads) continue;
    }
    attention.See(g, s.rope, visit, num_heads, q, slopes, turned, weights);
  }
  attention.Save(g, num_heads, states + warp * kGroup * (g.head_dim + 2));
  __syncthreads();

  WriteRow(a, row, kv_head * g.group() + first_head, num_heads, kGroup, states);
}

// One warp per row and head.
FOLIO_KERNEL void MergeKernel(RowList rows, const float* partial, int num_splits, int head_dim,
                              float* out) {
  BeginKernel();
  const int row = rows.rows[blockIdx.x];
  if (row < 0) return;
  const int64_t at = int64_t{row} * gridDim.y + blockIdx.y;
  const int64_t place = int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
  const int stride = head_dim + 2;
  const float* states = partial + place * num_splits * stride;
  const Merged merged = MergeStates(states, num_splits, stride, head_dim);
  for (int d = threadIdx.x; d < head_dim; d += kWarp) {
    out[at * head_dim + d] =
        MergedValue(states, num_splits, stride, head_dim, merged, d) / merged.sum;
  }
}

template <Cache kCache, int kGroup, int kPerLane>
void LaunchAttend(Stream stream, AttendArgs args, int num_splits) {
  const Geometry& g = args.g;
  args.head_blocks = (g.group() + kGroup - 1) / kGroup;
  const int floats = kGroup * g.head_dim + kWarps * kGroup * (2 * g.head_dim + 2 + PartTokens(g));
  const dim3 grid = {static_cast<unsigned>(args.step.plain_rows.count),
                     static_cast<unsigned>(g.num_kv_heads * args.head_blocks),
                     static_cast<unsigned>(num_splits)};
  Launch(AttendKernel<kCache, kGroup, kPerLane>, grid, kWarps * kWarp,
         floats * static_cast<int>(sizeof(float)), stream, args);
}

template <Cache kCache, int kGroup>
void LaunchByWidth(Stream stream, const AttendArgs& args, int num_splits) {
  if (args.g.head_dim <= 4 * kWarp) {
    LaunchAttend<kCache, kGroup, 4>(stream, args, num_splits);
  } else {
    LaunchAttend<kCache, kGroup, 8>(stream, args, num_splits);
  }
}

template <Cache kCache>
void LaunchByGroup(Stream stream, const AttendArgs& args, int num_splits) {
  if (args.g.group() == 1) {
    LaunchByWidth<kCache, 1>(stream, args, num_splits);
  } else if (args.g.group() <= 4) {
    LaunchByWidth<kCache, 4>(stream, args, num_splits);
  } else {
    LaunchByWidth<kCache, 8>(stream, args, num_splits);
  }
}

}  // namespace

void AttendPlainRows(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                     const Picks& tokens, int layer, const float* qkv, int num_splits,
                     float* partial, float* out) {
  const AttendArgs args = {g, step, picks, tokens, layer, 1, qkv, partial, out};
  if (g.cache == Cache::kBf16) {
    LaunchByGroup<Cache::kBf16>(stream, args, num_splits);
  } else {
    LaunchByGroup<Cache::kF32>(stream, args, num_splits);
  }
  MergeSplits(stream, g, step.plain_rows, num_splits, partial, out);
}

void MergeSplits(Stream stream, const Geometry& g, const RowList& rows, int num_splits,
                 const float* partial, float* out) {
  if (num_splits == 1) return;
  Launch(MergeKernel,
         dim3{static_cast<unsigned>(rows.count), static_cast<unsigned>(g.num_heads), 1}, kWarp, 0,
         stream, rows, partial, num_splits, g.head_dim, out);
}

}  // namespace folio::cuda
