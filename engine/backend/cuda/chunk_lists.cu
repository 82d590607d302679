// Chunks that heads choose for the rows of tiles. Per head, the rows that chose a chunk are listed;
// a block takes up to 64 of one list and sees the chunk with all of them, so that a chunk is loaded
// once for all who want it. What a row gets from each of its chunks is merged in the end.
#include "engine/backend/cuda/tensor_shapes.h"
#include "engine/backend/cuda/tile_attention.h"
#include "engine/backend/cuda/tiles.h"

namespace folio::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kScanThreads = 256;
constexpr int kRowsPerBlock = kTileWarps * 16;

// Pick k of head `head` (of the launch) for the n-th choosing row: its list, or -1.
struct Pick {
  int row;
  int list;
  int64_t chunk;
};
FOLIO_DEVICE Pick PickOf(const TileArgs& a, int n, int head, int k) {
  const Geometry& g = a.g;
  const int row = a.step.choosing_rows.rows[n];
  const int64_t at = int64_t{row} * g.num_heads + int64_t{a.first_kv_head} * g.group() + head;
  if (k >= a.picks.counts[at]) return {row, -1, 0};
  const int64_t chunk = a.picks.chosen[at * a.picks.capacity + k];
  const Slice& s = a.step.slices[a.step.slice_of_row[row]];
  return {row, s.list_begin + static_cast<int>(chunk), chunk};
}

// One thread per choosing row and pick; blockIdx.y is the head. lengths [heads][num_lists] are 0.
FOLIO_KERNEL void CountKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  const int n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / a.picks.capacity;
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) % a.picks.capacity;
  if (n >= a.step.choosing_rows.count) return;
  const Pick pick = PickOf(a, n, blockIdx.y, k);
  if (pick.list < 0) return;
  atomicAdd(&a.lists.lengths[int64_t{blockIdx.y} * a.step.num_lists + pick.list], 1);
}

// One block per head: where each list begins, in entries and in blocks of rows.
FOLIO_KERNEL void ScanKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  int* sums = DynamicShared<int>();  // [2][kScanThreads]
  const int num_lists = a.step.num_lists;
  const int64_t first = int64_t{blockIdx.x} * (num_lists + 1);
  const int* lengths = a.lists.lengths + int64_t{blockIdx.x} * num_lists;
  const int per_thread = (num_lists + kScanThreads - 1) / kScanThreads;
  const int begin = threadIdx.x * per_thread;
  const int end = begin + per_thread < num_lists ? begin + per_thread : num_lists;
  int entries = 0;
  int blocks = 0;
  for (int i = begin; i < end; ++i) {
    entries += lengths[i];
    blocks += (lengths[i] + kRowsPerBlock - 1) / kRowsPerBlock;
  }
  sums[threadIdx.x] = entries;
  sums[kScanThreads + threadIdx.x] = blocks;
  __syncthreads();
  entries = blocks = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) {
    entries += sums[t];
    blocks += sums[kScanThreads + t];
  }
  for (int i = begin; i < end; ++i) {
    a.lists.begins[first + i] = entries;
    a.lists.blocks[first + i] = blocks;
    a.lists.cursors[int64_t{blockIdx.x} * num_lists + i] = entries;
    entries += lengths[i];
    blocks += (lengths[i] + kRowsPerBlock - 1) / kRowsPerBlock;
  }
  if (begin < num_lists && end == num_lists) {
    a.lists.begins[first + num_lists] = entries;
    a.lists.blocks[first + num_lists] = blocks;
  }
}

// The order within a list depends on chance, the result of a row does not: rows of a block do not
// touch each other.
FOLIO_KERNEL void FillKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int n = thread / a.picks.capacity;
  if (n >= a.step.choosing_rows.count) return;
  const Pick pick = PickOf(a, n, blockIdx.y, thread % a.picks.capacity);
  if (pick.list < 0) return;
  const int at = atomicAdd(&a.lists.cursors[int64_t{blockIdx.y} * a.step.num_lists + pick.list], 1);
  const int64_t entries = int64_t{a.step.choosing_rows.count} * a.picks.capacity;
  a.lists.entries[blockIdx.y * entries + at] = thread;
}

// The list that block `n` of a head belongs to.
FOLIO_DEVICE int ListOf(const int* blocks, int num_lists, int n) {
  int low = 0;
  int high = num_lists;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blocks[middle] <= n ? low : high) = middle;
  }
  return low;
}

// blockIdx.y is the head; blocks of a head take its lists in turns.
template <int kDim, int kTokens>
FOLIO_KERNEL void __launch_bounds__(kTileWarps* kWarp)
    ChunkKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  using Block = TileBlock<kDim, kTokens, 1>;
  const Geometry& g = a.g;
  const int num_lists = a.step.num_lists;
  const int head = a.first_kv_head * g.group() + static_cast<int>(blockIdx.y);
  const int* begins = a.lists.begins + int64_t{blockIdx.y} * (num_lists + 1);
  const int* blocks = a.lists.blocks + int64_t{blockIdx.y} * (num_lists + 1);
  const int* entries =
      a.lists.entries + int64_t{blockIdx.y} * a.step.choosing_rows.count * a.picks.capacity;
  Block block(g);
  int* picks = reinterpret_cast<int*>(block.rows() + Block::kRows);  // [kRows]
  for (int n = blockIdx.x; n < blocks[num_lists]; n += gridDim.x) {
    const int list = ListOf(blocks, num_lists, n);
    const int first = begins[list] + (n - blocks[list]) * kRowsPerBlock;
    const int left = begins[list + 1] - first;
    const int num_rows = left < kRowsPerBlock ? left : kRowsPerBlock;
    const Pick of_list =
        PickOf(a, entries[first] / a.picks.capacity, blockIdx.y, entries[first] % a.picks.capacity);
    const Slice& s = a.step.slices[a.step.slice_of_row[of_list.row]];
    const int w = s.selection.chunk_tokens;
    __syncthreads();
    for (int r = threadIdx.x; r < Block::kRows; r += kTileWarps * kWarp) {
      TileRow& to = block.rows()[r];
      to = {-1, head, 0};
      if (r >= num_rows) continue;
      const int entry = entries[first + r];
      picks[r] = entry % a.picks.capacity;
      to.row = a.step.choosing_rows.rows[entry / a.picks.capacity];
      const int64_t i = s.first_position + to.row - s.row_begin;
      const ChunkView view = ViewChunks(s.selection, i, true);
      // After the picks that follow come the previous and the own chunk.
      const int count = a.picks.counts[int64_t{to.row} * g.num_heads + head];
      const int slots_after = count - picks[r] + view.num_forced - (view.forces_first() ? 1 : 0);
      to.base = slots_after * w + static_cast<int>(i % w);
    }
    __syncthreads();
    block.Clear();
    block.LoadQueries(a.qkv, s.rope, nullptr,
                      [&](int row) { return ScaleOf(a.step, s, a.layer, row); });
    const int blocks_per_page = g.page_tokens / kTokens;
    block.See(
        s.rope, w / kTokens, -1,
        [&](int at, TilePart* part) {
          const int page = at / blocks_per_page;
          part->offset = at % blocks_per_page * kTokens;
          const int64_t offset = int64_t{part->offset} * g.dim * 2;
          const int frame = s.pages[of_list.chunk * (w / g.page_tokens) + page - s.first_page];
          part->keys = g.Keys(frame, a.layer, head / g.group()) + offset;
          part->values = g.Values(frame, a.layer, head / g.group()) + offset;
          part->turn = -page;
          part->all = true;
          part->turn_keys = s.raw_keys;
          part->cap = part->stored = kTokens;
        },
        [&](int r) { return block.rows()[r].row >= 0 ? 0 : -1; });
    block.Finish([&](int r) -> Destination {
      return {StateOf(a, a.step.choosing_place[block.rows()[r].row], head, 1 + picks[r]), false};
    });
  }
}

// One warp per choosing row and head.
FOLIO_KERNEL void MergePicksKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  const int row = a.step.choosing_rows.rows[blockIdx.x];
  const int head = a.first_kv_head * a.g.group() + static_cast<int>(blockIdx.y);
  const int64_t at = int64_t{row} * a.g.num_heads + head;
  const int count = 1 + a.picks.counts[at];
  const int head_dim = a.g.head_dim;
  const float* states = StateOf(a, static_cast<int>(blockIdx.x), head, 0);
  const Merged merged = MergeStates(states, count, head_dim + 2, head_dim);
  for (int d = threadIdx.x; d < head_dim; d += kWarp) {
    a.out[at * head_dim + d] =
        MergedValue(states, count, head_dim + 2, head_dim, merged, d) / merged.sum;
  }
}

template <int kDim, int kTokens>
void LaunchChunks(Stream stream, const TileArgs& args, int blocks_per_head) {
  using Block = TileBlock<kDim, kTokens, 1>;
  const dim3 grid = {static_cast<unsigned>(blocks_per_head),
                     static_cast<unsigned>(args.num_kv_heads * args.g.group()), 1};
  Launch(ChunkKernel<kDim, kTokens>, grid, kTileWarps * kWarp,
         Block::SharedBytes() + Block::kRows * static_cast<int>(sizeof(int)), stream, args);
}

}  // namespace

void AttendPicks(Stream stream, const TileArgs& args, int num_multiprocessors) {
  const int num_rows = args.step.choosing_rows.count;
  const int num_heads = args.num_kv_heads * args.g.group();
  const int threads = num_rows * args.picks.capacity;
  const dim3 per_pick = {static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                         static_cast<unsigned>(num_heads), 1};
  Launch(CountKernel, per_pick, kThreads, 0, stream, args);
  Launch(ScanKernel, dim3{static_cast<unsigned>(num_heads), 1, 1}, kScanThreads,
         2 * kScanThreads * static_cast<int>(sizeof(int)), stream, args);
  Launch(FillKernel, per_pick, kThreads, 0, stream, args);
  // Enough blocks to fill the device twice, however the heads share them.
  const int blocks_per_head = (4 * num_multiprocessors + num_heads - 1) / num_heads;
  WithTensorShape(args.g, [&]<int kDim, int kTokens>() {
    LaunchChunks<kDim, kTokens>(stream, args, blocks_per_head);
  });
  Launch(MergePicksKernel,
         dim3{static_cast<unsigned>(num_rows), static_cast<unsigned>(num_heads), 1}, kWarp, 0,
         stream, args);
}

}  // namespace folio::cuda
