#include "engine/backend/cpu/chunk_summary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace folio {

using cpu::kQueryRows;

void ChunkSummarizer::Run(const CpuAttentionContext& context, const SequenceSlice& slice, int layer,
                          int head, const float* qkv) {
  const KvGeometry& g = context.geometry();
  const int64_t w = slice.plan->selection.chunk_tokens;
  const int64_t width = int64_t{g.num_heads + 2 * g.num_kv_heads} * g.head_dim;
  float* pending =
      slice.pending_queries->data.data() + (int64_t{layer} * g.num_heads + head) * w * g.padded_dim;
  for (int i = 0; i < slice.num_rows; ++i) {
    const int64_t position = slice.first_position + i;
    const int64_t offset = position % w;
    const float* q = qkv + (slice.row_begin + i) * width + int64_t{head} * g.head_dim;
    context.kernels->rotate(q, context.positions->Cos(offset), context.positions->Sin(offset), 1.0f,
                            g.head_dim / 2, pending + offset * g.padded_dim);
    if (offset != w - 1) continue;
    Chunk chunk;
    chunk.index = position / w;
    chunk.layer = layer;
    chunk.head = head;
    chunk.kv_head = head / (g.num_heads / g.num_kv_heads);
    chunk.num_pages = static_cast<int>(w / g.page_tokens);
    chunk.slice = &slice;
    chunk.queries = pending;
    Summarize(context, chunk);
  }
}

FrameId ChunkSummarizer::Page(const CpuAttentionContext&, const Chunk& chunk, int page) const {
  const SequenceSlice& slice = *chunk.slice;
  return slice.pages[chunk.index * chunk.num_pages + page - slice.first_page];
}

void ChunkSummarizer::Summarize(const CpuAttentionContext& context, const Chunk& chunk) {
  MeanOutput(context, chunk);
  WeighKeys(context, chunk);
  const SequenceSlice& slice = *chunk.slice;
  float* tile = context.SummaryTile(slice.summaries[chunk.index / kTile], chunk.layer, chunk.head);
  const int lane = static_cast<int>(chunk.index % kTile);
  // A tile's first chunk clears it: lanes without a chunk must hold finite numbers.
  const int dim = context.geometry().padded_dim;
  if (lane == 0) std::fill(tile, tile + int64_t{dim} * kTile, 0.0f);
  for (int d = 0; d < dim; ++d) tile[d * kTile + lane] = result_[d];
}

// query_ = mean over the chunk's queries of softmax(Ql Kl^T scale) V, not causal.
void ChunkSummarizer::MeanOutput(const CpuAttentionContext& context, const Chunk& chunk) {
  const KvGeometry& g = context.geometry();
  const int dim = g.padded_dim;
  const int num_queries = chunk.num_pages * g.page_tokens;
  const int stride = dim + 2;
  states_.resize(static_cast<size_t>(num_queries) * stride);
  rotated_.assign(static_cast<size_t>(kQueryRows) * dim, 0.0f);
  for (int i = 0; i < num_queries; ++i) cpu::InitState(&states_[i * stride], dim);
  for (int page = 0; page < chunk.num_pages; ++page) {
    const FrameId frame = Page(context, chunk, page);
    cpu::AttendPageArgs args;
    args.k = context.Keys(frame, chunk.layer, chunk.kv_head);
    args.v = context.Values(frame, chunk.layer, chunk.kv_head);
    args.next_k = args.k;
    args.next_v = args.v;
    args.dim = dim;
    args.q = rotated_.data();
    args.lo.fill(0);
    args.hi.fill(g.page_tokens);
    for (int first = 0; first < num_queries; first += kQueryRows) {
      args.num_rows = std::min(kQueryRows, num_queries - first);
      for (int r = 0; r < args.num_rows; ++r) {
        // Keys are rotated from the start of their page: turn the query back by the page's offset.
        float* q = &rotated_[r * dim];
        context.kernels->rotate(chunk.queries + (first + r) * dim, context.pages->Cos(page),
                                context.pages->Sin(page), -1.0f, g.head_dim / 2, q);
        for (int d = 0; d < g.head_dim; ++d) q[d] *= context.scale;
        args.state[r] = &states_[(first + r) * stride];
      }
      context.kernels->attend_page(g.dtype, g.page_tokens, args);
    }
  }
  query_.assign(dim, 0.0f);
  for (int i = 0; i < num_queries; ++i) {
    const float* state = &states_[i * stride];
    for (int d = 0; d < dim; ++d) query_[d] += state[d] / state[dim + 1];
  }
  for (float& value : query_) value /= static_cast<float>(num_queries);
}

// result_ = sum over the chunk of softmax(scale Kl query_) Kl.
void ChunkSummarizer::WeighKeys(const CpuAttentionContext& context, const Chunk& chunk) {
  const KvGeometry& g = context.geometry();
  const int dim = g.padded_dim;
  const int half = g.head_dim / 2;
  weights_.resize(static_cast<size_t>(chunk.num_pages) * g.page_tokens);
  const int64_t tile_bytes = int64_t{kTile} * dim * DTypeBytes(g.dtype);
  for (int page = 0; page < chunk.num_pages; ++page) {
    context.kernels->rotate(query_.data(), context.pages->Cos(page), context.pages->Sin(page),
                            -1.0f, half, rotated_.data());
    const std::byte* keys = context.Keys(Page(context, chunk, page), chunk.layer, chunk.kv_head);
    for (int t = 0; t < g.page_tokens; t += kTile) {
      const std::byte* tile = keys + t / kTile * tile_bytes;
      context.kernels->score_tile(g.dtype, tile, dim, rotated_.data(),
                                  &weights_[page * g.page_tokens + t]);
    }
  }
  for (float& weight : weights_) weight *= context.scale;
  context.kernels->softmax(weights_.data(), static_cast<int>(weights_.size()));
  result_.assign(dim, 0.0f);
  for (int page = 0; page < chunk.num_pages; ++page) {
    partial_.assign(dim, 0.0f);
    const std::byte* keys = context.Keys(Page(context, chunk, page), chunk.layer, chunk.kv_head);
    for (int t = 0; t < g.page_tokens; t += kTile) {
      context.kernels->add_weighted_keys(g.dtype, keys + t / kTile * tile_bytes, dim,
                                         &weights_[page * g.page_tokens + t], partial_.data());
    }
    context.kernels->rotate(partial_.data(), context.pages->Cos(page), context.pages->Sin(page),
                            1.0f, half, rotated_.data());
    for (int d = 0; d < g.head_dim; ++d) result_[d] += rotated_[d];
  }
}

void ChunkSelector::Offer(int row, float score, int64_t chunk) {
  Scored* best = &best_[row * capacity_];
  int& count = counts_[row];
  // Chunks come in ascending order, so an equal score never displaces an earlier one.
  if (count == static_cast<int>(capacity_)) {
    if (!(score > best[count - 1].score)) return;
    --count;
  }
  int at = count++;
  for (; at > 0 && best[at - 1].score < score; --at) best[at] = best[at - 1];
  best[at] = {score, chunk};
}

float ChunkSelector::Threshold(int row) const {
  return counts_[row] == static_cast<int>(capacity_) ? best_[(row + 1) * capacity_ - 1].score
                                                     : -std::numeric_limits<float>::infinity();
}

// Up to kQueryRows rows against the chunks of one tile.
void ChunkSelector::ScoreTile(const cpu::ScoreChunksArgs& args, int first_row, int64_t tile,
                              const cpu::Kernels& kernels, std::span<const int64_t> own) {
  cpu::ScoreChunksArgs part = args;
  for (int r = 0; r < args.num_rows; ++r) part.thresholds[r] = Threshold(first_row + r);
  kernels.score_chunks(&part);
  for (int r = 0; r < args.num_rows; ++r) {
    const int row = first_row + r;
    const int64_t end = own[row] - 1;
    // Ascending: the threshold only rises, and equal scores keep the smaller index.
    for (uint32_t mask = part.above[r]; mask != 0; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      const int64_t chunk = tile * kTile + lane;
      if (chunk >= 1 && chunk < end) Offer(row, part.scores[r * kTile + lane], chunk);
    }
  }
}

// Tiles outside, rows inside: a tile is read once for all rows.
void ChunkSelector::Scan(const CpuAttentionContext& context, const SequenceSlice& slice, int layer,
                         int head, std::span<const float> queries, std::span<const int64_t> own) {
  const int num_rows = static_cast<int>(own.size());
  const int64_t last_tile = (own.back() - 2) / kTile;
  if (own.back() < 3) return;
  cpu::ScoreChunksArgs args;
  args.dim = context.geometry().padded_dim;
  for (int64_t tile = 0; tile <= last_tile; ++tile) {
    args.tile = context.SummaryTile(slice.summaries[tile], layer, head);
    args.next =
        tile < last_tile ? context.SummaryTile(slice.summaries[tile + 1], layer, head) : args.tile;
    for (int first = 0; first < num_rows; first += kQueryRows) {
      args.num_rows = std::min(kQueryRows, num_rows - first);
      if (own[first + args.num_rows - 1] - 2 < tile * kTile) continue;
      args.q = &queries[int64_t{first} * args.dim];
      ScoreTile(args, first, tile, *context.kernels, own);
      args.next = args.tile;
    }
  }
}

void ChunkSelector::Run(const CpuAttentionContext& context, const SequenceSlice& slice, int layer,
                        int head, std::span<const float> queries, std::span<const int64_t> own) {
  const int num_rows = static_cast<int>(own.size());
  capacity_ = slice.plan->selection.num_free_picks;
  best_.resize(num_rows * capacity_);
  picks_.resize(num_rows * capacity_ + 1);
  counts_.assign(num_rows, 0);
  Scan(context, slice, layer, head, queries, own);
  for (int row = 0; row < num_rows; ++row) {
    int64_t* picks = &picks_[row * capacity_];
    for (int i = 0; i < counts_[row]; ++i) picks[i] = best_[row * capacity_ + i].chunk;
    std::sort(picks, picks + counts_[row]);
  }
}

}  // namespace folio
