// Attention of many rows at once (prefill) on tensor cores: a block takes a tile of consecutive
// rows of one sequence and walks the pages that any of them sees. Where heads choose chunks, this
// is the part that all rows of a tile share: first, previous and own chunk; chunk_lists.cu does the
// rest.
#include "engine/backend/cuda/tensor_shapes.h"
#include "engine/backend/cuda/tile_attention.h"
#include "engine/backend/cuda/tiles.h"

namespace folio::cuda {
namespace {

constexpr int kMaxHeads = 16;  // of a group in one tile

// Queries of a tile: kTilesM x 64.
template <int kDim>
constexpr int kTilesOf = kDim <= 128 ? 2 : 1;

int HeadsPerTile(const Geometry& g) { return g.group() < kMaxHeads ? g.group() : kMaxHeads; }

// What a tile sees under one stage.
class StageParts {
 public:
  FOLIO_DEVICE StageParts(const Geometry& g, const Slice& s, const Stage& stage, int layer,
                          int kv_head, int block_tokens, int64_t first, int64_t last, int num_picks)
      : g_(g),
        s_(s),
        stage_(stage),
        layer_(layer),
        kv_head_(kv_head),
        block_tokens_(block_tokens),
        first_(first) {
    if (last < stage.rows_begin || first >= stage.rows_end) return;
    // Rows that choose tokens are not in tiles.
    if (stage.keys == Stage::kContext) SetContext(last);
    if (stage.keys == Stage::kSinks) SetSinks(last);
    if (stage.keys == Stage::kChunks) SetChunks(num_picks);
  }

  FOLIO_DEVICE int count() const {
    return static_cast<int>(num_pages_) * (g_.page_tokens / block_tokens_);
  }
  FOLIO_DEVICE int64_t pinned_distance() const {
    return stage_.distance == Stage::kPinned ? stage_.distance_limit : -1;
  }
  FOLIO_DEVICE const float* fixed() const {
    return stage_.distance == Stage::kPinned ? stage_.fixed : nullptr;
  }
  // Where query i stands, from the anchor of the tile.
  FOLIO_DEVICE int BaseOf(int64_t i) const {
    i = QueryPosition(stage_, i);
    return i < anchor_ ? 0 : static_cast<int>(i - anchor_);
  }

  FOLIO_DEVICE void Get(int n, TilePart* part) const {
    const int blocks = g_.page_tokens / block_tokens_;
    const int page = n / blocks;
    const int offset = n % blocks * block_tokens_;
    part->turn = 0;
    part->offset = offset;
    part->all = false;
    part->turn_keys =
        s_.raw_keys && stage_.keys != Stage::kSinks && stage_.distance != Stage::kPinned;
    part->cap = block_tokens_;
    int64_t start = 0;  // of the page, where its tokens are numbered from 0
    int64_t end = s_.first_position + s_.num_rows;
    int frame = 0;
    if (stage_.keys == Stage::kChunks) {
      GetChunk(page, offset, &frame, &start, part);
    } else if (stage_.keys == Stage::kSinks) {
      frame = s_.sinks[page];
      start = int64_t{page} * g_.page_tokens;
      end = s_.num_sinks < end ? s_.num_sinks : end;
      part->cap = Clamped(s_.num_sinks - start - offset);
      if (part->cap > block_tokens_) part->cap = block_tokens_;
    } else {
      frame = s_.pages[first_page_ + page - s_.first_page];
      start = (first_page_ + page) * g_.page_tokens;
    }
    if (stage_.keys != Stage::kChunks) {
      const int64_t from_start = first_ - start - offset;
      part->hi = Clamped(from_start - stage_.band_begin + 1);
      part->lo =
          stage_.band_end > (int64_t{1} << 60) ? -kFar : Clamped(from_start - stage_.band_end + 1);
      if (stage_.distance != Stage::kPinned) {
        part->turn = static_cast<int>((anchor_ - start) / g_.page_tokens);
      }
    }
    part->stored = Clamped(end - start - offset);
    const int64_t bytes = int64_t{offset} * g_.dim * 2;
    part->keys = g_.Keys(frame, layer_, kv_head_) + bytes;
    part->values = g_.Values(frame, layer_, kv_head_) + bytes;
  }

 private:
  FOLIO_DEVICE void SetContext(int64_t last) {
    anchor_ = first_ / g_.page_tokens * g_.page_tokens;
    if (last < stage_.band_begin) return;
    first_page_ = KeysOf(stage_, s_.num_sinks, first_).begin / g_.page_tokens;
    if (first_page_ < s_.first_page) first_page_ = s_.first_page;
    const int64_t pages = (last - stage_.band_begin) / g_.page_tokens - first_page_ + 1;
    num_pages_ = pages > 0 ? pages : 0;
  }

  FOLIO_DEVICE void SetSinks(int64_t last) {
    anchor_ = QueryPosition(stage_, first_) / g_.page_tokens * g_.page_tokens;
    const int64_t end = KeysOf(stage_, s_.num_sinks, last).end;
    num_pages_ = (end + g_.page_tokens - 1) / g_.page_tokens;
  }

  FOLIO_DEVICE void SetChunks(int num_picks) {
    const ChunkSelection& select = s_.selection;
    view_ = ViewChunks(select, first_, true);
    anchor_ = view_.own * select.chunk_tokens;
    num_picks_ = num_picks;
    num_pages_ = (view_.num_forced + 1) * (select.chunk_tokens / g_.page_tokens);
  }

  // Page `page` of the forced chunks and then the own one.
  FOLIO_DEVICE void GetChunk(int page, int offset, int* frame, int64_t* start,
                             TilePart* part) const {
    const int w = s_.selection.chunk_tokens;
    const int pages_per_chunk = w / g_.page_tokens;
    const int slot = page / pages_per_chunk;
    const int in_chunk = page % pages_per_chunk;
    const bool own = slot == view_.num_forced;
    const int64_t chunk = own ? view_.own : view_.forced[slot];
    // The picks stand between the first chunk and the others.
    const int slots_after =
        view_.num_forced - slot + (view_.forces_first() && slot == 0 ? num_picks_ : 0);
    part->turn = slots_after * pages_per_chunk - in_chunk;
    part->all = !own;
    part->lo = -kFar;
    part->hi = Clamped(view_.own_tokens - in_chunk * g_.page_tokens - offset);
    *start = chunk * w + in_chunk * g_.page_tokens;
    *frame = s_.pages[*start / g_.page_tokens - s_.first_page];
  }

  const Geometry& g_;
  const Slice& s_;
  const Stage& stage_;
  const int layer_;
  const int kv_head_;
  const int block_tokens_;
  const int64_t first_;  // position of the tile's first row
  int64_t anchor_ = 0;
  int64_t first_page_ = 0;
  int64_t num_pages_ = 0;
  int num_picks_ = 0;
  ChunkView view_ = {};
};

template <int kDim, int kTokens>
FOLIO_KERNEL void __launch_bounds__(kTileWarps* kWarp)
    TilesKernel(const __grid_constant__ TileArgs a) {
  BeginKernel();
  using Block = TileBlock<kDim, kTokens, kTilesOf<kDim>>;
  const Geometry& g = a.g;
  const Tile& tile = a.step.tiles[blockIdx.x];
  const Slice& s = a.step.slices[tile.slice];
  const int kv_head = a.first_kv_head + blockIdx.y / a.head_blocks;
  const int first_head = blockIdx.y % a.head_blocks * a.heads_per_tile;  // in the group
  const int heads_left = g.group() - first_head;
  const int num_heads = heads_left < a.heads_per_tile ? heads_left : a.heads_per_tile;
  const int64_t first = s.first_position + tile.row_begin - s.row_begin;
  const int64_t last = first + tile.num_rows - 1;

  Block block(g);
  for (int r = threadIdx.x; r < Block::kRows; r += kTileWarps * kWarp) {
    const int token = r / a.heads_per_tile;
    const int head = r % a.heads_per_tile;
    const bool any = token < tile.num_rows && head < num_heads;
    block.rows()[r] = {any ? tile.row_begin + token : -1, kv_head * g.group() + first_head + head,
                       0};
  }
  __syncthreads();
  block.Clear();

  // All rows and heads of a tile choose as many chunks.
  const int head = kv_head * g.group() + first_head;
  const int num_picks = s.selection.chunk_tokens == 0
                            ? 0
                            : a.picks.counts[int64_t{tile.row_begin} * g.num_heads + head];
  for (int n = 0; n < s.num_stages; ++n) {
    const Stage& stage = s.stages[n];
    const StageParts parts(g, s, stage, a.layer, kv_head, kTokens, first, last, num_picks);
    if (parts.count() == 0) continue;
    for (int r = threadIdx.x; r < Block::kRows; r += kTileWarps * kWarp) {
      block.rows()[r].base = parts.BaseOf(first + r / a.heads_per_tile);
    }
    __syncthreads();
    block.LoadQueries(a.qkv, s.rope, parts.fixed(),
                      [&](int row) { return ScaleOf(a.step, s, a.layer, row); });
    block.See(
        s.rope, parts.count(), parts.pinned_distance(),
        [&](int at, TilePart* part) { parts.Get(at, part); },
        [&](int r) {
          const int rel = r / a.heads_per_tile;
          return block.rows()[r].row >= 0 && stage.CoversRow(first + rel) ? rel : -1;
        });
  }
  block.Finish([&](int r) -> Destination {
    const TileRow& at = block.rows()[r];
    const int place = a.step.choosing_place[at.row];
    if (place < 0) {
      return {a.out + (int64_t{at.row} * g.num_heads + at.head) * kDim, true};
    }
    return {StateOf(a, place, at.head, 0), false};
  });
}

template <int kDim, int kTokens>
void LaunchTiles(Stream stream, TileArgs args) {
  using Block = TileBlock<kDim, kTokens, kTilesOf<kDim>>;
  args.heads_per_tile = HeadsPerTile(args.g);
  args.head_blocks = (args.g.group() + args.heads_per_tile - 1) / args.heads_per_tile;
  const dim3 grid = {static_cast<unsigned>(args.step.num_tiles),
                     static_cast<unsigned>(args.num_kv_heads * args.head_blocks), 1};
  Launch(TilesKernel<kDim, kTokens>, grid, kTileWarps * kWarp, Block::SharedBytes(), stream, args);
}

}  // namespace

int RowsPerTile(const Geometry& g) {
  return (g.head_dim <= 128 ? 2 : 1) * kTileWarps * 16 / HeadsPerTile(g);
}

int TileSharedBytes(const Geometry& g) {
  int bytes = 0;
  WithTensorShape(g, [&]<int kDim, int kTokens>() {
    bytes = TileBlock<kDim, kTokens, kTilesOf<kDim>>::SharedBytes();
  });
  return bytes;
}

void AttendTiles(Stream stream, const TileArgs& args) {
  WithTensorShape(args.g,
                  [&]<int kDim, int kTokens>() { LaunchTiles<kDim, kTokens>(stream, args); });
}

}  // namespace folio::cuda
