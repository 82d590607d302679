// Brings the slices of one layer that a step reads from the host's memory into the device's cache
// of them, by the device alone: rows mark what they look at, what is missing takes the slots of
// slices that were needed least (a clock whose hand takes one use away as it passes), and is
// copied. What finds no slot is read where it lies.
#include "engine/backend/cuda/choice.h"
#include "engine/backend/cuda/visit.h"

namespace folio::cuda {
namespace {

constexpr int kMarkThreads = 128;
constexpr int64_t kMaxMarkBlocks = 64;  // of a row and KV head
constexpr int kAssignThreads = 256;
// As many bytes under way as the link needs, from few multiprocessors: the others are for kernels
// that overlap.
constexpr int kCopyBlocks = 8;
constexpr int kCopyThreads = 512;
constexpr int kCopyWords = 4;  // of 16 bytes, under way per thread

// Uses that are told apart.
constexpr int kMaxUses = 15;

FOLIO_DEVICE void CountUse(const SliceCache& cache, int64_t slice) {
  if (cache.uses[slice] < kMaxUses) ++cache.uses[slice];
}

// A row of this turn, of sequence `reader`, looks at a slice of a page that is at home.
FOLIO_DEVICE void Mark(const SliceCache& cache, unsigned turn, int reader, int64_t slice) {
  const int slot = Peek(&cache.slot_of[slice]);
  if (slot < 0) return;
  if (slot > 0) {
    if (atomicExch(&cache.stamps[slot], turn) == turn) return;
    CountUse(cache, slice);
    atomicAdd(&cache.reads_of[2 * reader], 1);
    return;
  }
  if (atomicCAS(&cache.slot_of[slice], 0, -1) != 0) return;
  cache.missing[atomicAdd(&cache.counts->num_missing, 1)] = slice;
  CountUse(cache, slice);
  atomicAdd(&cache.reads_of[2 * reader + 1], 1);
}

// A block per reading row, KV head and part of what the row looks at. Tokens are not chosen yet:
// all that they are chosen from is marked.
FOLIO_KERNEL void MarkKernel(const __grid_constant__ Geometry g, const __grid_constant__ Step step,
                             const __grid_constant__ Picks picks, int layer) {
  BeginKernel();
  const int row = step.reading_rows.rows[blockIdx.x];
  if (row < 0) return;
  const int kv_head = blockIdx.y;
  const int reader = step.slice_of_row[row];
  const Slice& s = step.slices[reader];
  const unsigned turn = g.slices.counts->turn;
  const int64_t first = int64_t{blockIdx.z} * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t{gridDim.z} * blockDim.x;
  const Picks no_tokens = {};
  const Visits visits(g, s, picks, no_tokens, row, layer, kv_head);
  for (int64_t v = first; v < visits.count(); v += stride) {
    int64_t in_stage = v;
    Visit visit;
    if (visits.StageOf(&in_stage)->keys == Stage::kTopTokens || !visits.Get(v, &visit)) continue;
    if (visit.place >= 0) continue;
    Mark(g.slices, turn, reader, g.SliceAtHome(visit.place, layer, kv_head));
  }
  const int64_t num_tokens = TokensOf(s, s.first_position + row - s.row_begin, layer).count;
  if (num_tokens == 0) return;
  const int64_t end = (s.num_sinks + num_tokens - 1) / g.page_tokens;
  for (int64_t page = s.num_sinks / g.page_tokens + first; page <= end; page += stride) {
    const int place = s.pages[page - s.first_page];
    if (place < 0) Mark(g.slices, turn, reader, g.SliceAtHome(place, layer, kv_head));
  }
}

// What the threads of AssignKernel share.
struct Assigning {
  int num_taken;
  int looked_at_others;  // in this round, at slots that this turn does not need
};

// Whether a slot may be taken from its slice; if not because that was needed often, it has one use
// less from now on. REQUIRES: this turn does not need it.
FOLIO_DEVICE bool GivesUp(const SliceCache& cache, int slot) {
  const int64_t owner = cache.owners[slot];
  if (Peek(&cache.slot_of[owner]) != slot) return true;  // it is not there any more
  if (cache.uses[owner] > 1) {
    --cache.uses[owner];
    return false;
  }
  atomicExch(&cache.slot_of[owner], 0);
  return true;
}

// One slot after the hand, for one of the missing slices if it gives up its own.
FOLIO_DEVICE void LookAt(const SliceCache& cache, int slot, int wanted, Assigning* shared) {
  const unsigned turn = cache.counts->turn;
  if (cache.stamps[slot] == turn) return;
  atomicExch(&shared->looked_at_others, 1);
  if (Peek(&shared->num_taken) >= wanted || !GivesUp(cache, slot)) return;
  const int at = atomicAdd(&shared->num_taken, 1);
  if (at >= wanted) return;
  const int64_t slice = cache.missing[at];
  cache.owners[slot] = slice;
  cache.stamps[slot] = turn;
  atomicExch(&cache.slot_of[slice], slot);
}

// One round of the hand over all slots, or as far as it takes. All threads.
FOLIO_DEVICE int LookAround(const SliceCache& cache, int wanted, Assigning* shared) {
  const int hand = cache.counts->hand;
  int looked = 0;
  for (; looked < cache.num_slots; looked += kAssignThreads) {
    __syncthreads();
    const bool enough = Peek(&shared->num_taken) >= wanted;
    __syncthreads();
    if (enough) return looked;
    const int64_t at = int64_t{looked} + threadIdx.x;
    if (at >= cache.num_slots) continue;
    LookAt(cache, 1 + static_cast<int>((hand + at) % cache.num_slots), wanted, shared);
  }
  return 0;  // it stands where it stood
}

// One block. Slots for the missing slices, as far as there are any.
FOLIO_KERNEL void AssignKernel(const __grid_constant__ SliceCache cache) {
  BeginKernel();
  auto* shared = DynamicShared<Assigning>();
  SliceCounts& counts = *cache.counts;
  const int wanted = counts.num_missing;
  if (threadIdx.x == 0) shared->num_taken = 0;
  int moved = 0;
  // After so many rounds every slice that this turn does not need has no use left.
  for (int round = 0; round <= kMaxUses; ++round) {
    if (threadIdx.x == 0) shared->looked_at_others = 0;
    moved = LookAround(cache, wanted, shared);
    __syncthreads();
    const bool done = Peek(&shared->num_taken) >= wanted || shared->looked_at_others == 0;
    __syncthreads();
    if (done) break;
  }
  const int taken = shared->num_taken < wanted ? shared->num_taken : wanted;
  for (int n = taken + static_cast<int>(threadIdx.x); n < wanted; n += kAssignThreads) {
    atomicExch(&cache.slot_of[cache.missing[n]], 0);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  counts.hand = static_cast<int>((int64_t{counts.hand} + moved) % cache.num_slots);
  counts.num_taken = taken;
  counts.num_missing = 0;
  ++counts.turn;
}

// Blocks take the new slices in turns.
FOLIO_KERNEL void __launch_bounds__(kCopyThreads) CopyKernel(const __grid_constant__ Geometry g) {
  BeginKernel();
  const SliceCache& cache = g.slices;
  const int64_t slices_per_page = int64_t{g.num_layers} * g.num_kv_heads;
  const int64_t words = g.slice_bytes / static_cast<int64_t>(sizeof(uint4));
  for (int n = blockIdx.x; n < cache.counts->num_taken; n += gridDim.x) {
    const int64_t slice = cache.missing[n];
    const int64_t offset =
        slice / slices_per_page * g.frame_bytes + slice % slices_per_page * g.slice_bytes;
    const auto* from = reinterpret_cast<const uint4*>(cache.home + offset);
    auto* to = reinterpret_cast<uint4*>(cache.slots + (cache.slot_of[slice] - 1) * g.slice_bytes);
    for (int64_t at = threadIdx.x; at < words; at += int64_t{kCopyWords} * kCopyThreads) {
      uint4 values[kCopyWords];
#pragma unroll
      for (int w = 0; w < kCopyWords; ++w) {
        if (at + w * kCopyThreads < words) values[w] = from[at + w * kCopyThreads];
      }
#pragma unroll
      for (int w = 0; w < kCopyWords; ++w) {
        if (at + w * kCopyThreads < words) to[at + w * kCopyThreads] = values[w];
      }
    }
  }
}

}  // namespace

void BringSlices(Stream stream, const Geometry& g, const Step& step, const Picks& picks, int layer,
                 int64_t visits) {
  const int64_t blocks = (visits + kMarkThreads - 1) / kMarkThreads;
  const int64_t splits = blocks < 1 ? 1 : blocks < kMaxMarkBlocks ? blocks : kMaxMarkBlocks;
  const dim3 grid = {static_cast<unsigned>(step.reading_rows.count),
                     static_cast<unsigned>(g.num_kv_heads), static_cast<unsigned>(splits)};
  Launch(MarkKernel, grid, kMarkThreads, 0, stream, g, step, picks, layer);
  Launch(AssignKernel, dim3{1, 1, 1}, kAssignThreads, static_cast<int>(sizeof(Assigning)), stream,
         g.slices);
  Launch(CopyKernel, dim3{kCopyBlocks, 1, 1}, kCopyThreads, 0, stream, g);
}

}  // namespace folio::cuda
