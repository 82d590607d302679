#include "engine/backend/cpu/chunk_summary.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/backend/cpu/coarse_summary.h"
#include "engine/base/half.h"

namespace folio {

using cpu::kQueryRows;
using Scorer = ChunkSelection::Scorer;

namespace {

// Tokens that stand for a chunk under Scorer::kRepresentatives.
constexpr int kNumRepresentatives = 4;
// Queries that see a page before the next one is read.
constexpr int kPassQueries = 64;

}  // namespace

void ChunkSummarizer::Run(const CpuAttentionContext& context, int layer, int head,
                          const float* qkv) {
  context_ = &context;
  const KvGeometry& g = context.geometry();
  const SequenceSlice& slice = *context.slice;
  const ChunkSelection& selection = context.plan().selection;
  const int64_t w = selection.chunk_tokens;
  const RotationTable& positions = context.summary_rope->positions;
  const bool needs_queries = NeedsQueries(selection.scorer);
  // The first head of a group makes those that its heads share.
  if (!needs_queries && head % context.group_size() != 0) return;
  rotated_.assign(static_cast<size_t>(kQueryRows) * g.padded_dim, 0.0f);
  for (int i = 0; i < slice.num_rows; ++i) {
    const int64_t position = slice.first_position + i;
    const int64_t offset = position % w;
    if (needs_queries) {
      context.kernels->rotate(context.Query(qkv, i, head), positions.Cos(offset),
                              positions.Sin(offset), 1.0f, g.head_dim / 2, rotated_.data());
      StoreQuery(offset, layer, head);
    }
    if (offset != w - 1) continue;
    Chunk chunk;
    chunk.index = position / w;
    chunk.layer = layer;
    chunk.head = head;
    chunk.kv_head = head / context.group_size();
    chunk.num_pages = static_cast<int>(w / g.page_tokens);
    if (needs_queries) LoadQueries(chunk);
    switch (selection.scorer) {
      case Scorer::kLongHeads:
        LongHeads(chunk);
        break;
      case Scorer::kMeanKey:
        MeanKey(chunk);
        break;
      case Scorer::kQuest:
        Extremes(chunk);
        break;
      case Scorer::kRepresentatives:
        Representatives(chunk);
        break;
    }
    Write(chunk, result_, 0);
    if (selection.scorer == Scorer::kQuest) Write(chunk, second_, 1);
  }
}

std::byte* ChunkSummarizer::PendingRow(int64_t token, int layer, int head) const {
  const KvGeometry& g = context_->geometry();
  const PendingRows rows(g);
  const int64_t row = token * rows.rows_per_token + int64_t{layer} * g.num_heads + head;
  const FrameId frame = context_->slice->pending_queries[row / rows.rows_per_frame];
  return context_->setup->frames.Frame(frame) + row % rows.rows_per_frame * rows.row_bytes;
}

void ChunkSummarizer::StoreQuery(int64_t token, int layer, int head) const {
  const KvGeometry& g = context_->geometry();
  std::byte* to = PendingRow(token, layer, head);
  if (g.dtype == DType::kF32) {
    std::memcpy(to, rotated_.data(), g.head_dim * sizeof(float));
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (int d = 0; d < g.head_dim; ++d) bits[d] = FloatToBf16(rotated_[d]);
}

void ChunkSummarizer::LoadQueries(const Chunk& chunk) {
  const KvGeometry& g = context_->geometry();
  const int num_tokens = chunk.num_pages * g.page_tokens;
  queries_.assign(static_cast<size_t>(num_tokens) * g.padded_dim, 0.0f);
  for (int t = 0; t < num_tokens; ++t) {
    const std::byte* from = PendingRow(t, chunk.layer, chunk.head);
    float* to = &queries_[static_cast<size_t>(t) * g.padded_dim];
    if (g.dtype == DType::kF32) {
      std::memcpy(to, from, g.head_dim * sizeof(float));
      continue;
    }
    const auto* bits = reinterpret_cast<const uint16_t*>(from);
    for (int d = 0; d < g.head_dim; ++d) to[d] = Bf16ToFloat(bits[d]);
  }
}

FrameId ChunkSummarizer::Page(const Chunk& chunk, int page) const {
  const SequenceSlice& slice = *context_->slice;
  return slice.pages[chunk.index * chunk.num_pages + page - slice.first_page];
}

PageNumbers ChunkSummarizer::Read(const Chunk& chunk, int page) {
  const std::byte* slice = context_->OpenSlice(Page(chunk, page), chunk.layer, chunk.kv_head);
  return pages_.Read(*context_, *context_->summary_rope, slice,
                     {.stored_rotated = !context_->raw_keys(), .rotated = true});
}

void ChunkSummarizer::Write(const Chunk& chunk, const std::vector<float>& vector, int which) {
  const SequenceSlice& slice = *context_->slice;
  const KvGeometry& g = context_->geometry();
  const SummaryLayout layout = SummaryLayoutOf(slice.plan->selection, g.group_size());
  const SummaryLayout::Place place = layout.PlaceOf(chunk.index / kTile, chunk.head, which);
  const FrameId frame = slice.summaries[place.frame];
  std::byte* tile = context_->SummaryTile(frame, chunk.layer, place.head);
  const int lane = static_cast<int>(chunk.index % kTile);
  // A tile's first chunk clears it: lanes without a chunk must hold finite numbers.
  if (lane == 0) std::memset(tile, 0, g.summary_tile_bytes());
  if (g.dtype == DType::kF32) {
    auto* numbers = reinterpret_cast<float*>(tile);
    for (int d = 0; d < g.padded_dim; ++d) numbers[d * kTile + lane] = vector[d];
  } else {
    auto* bits = reinterpret_cast<uint16_t*>(tile);
    for (int d = 0; d < g.padded_dim; ++d) {
      bits[(d / 2 * kTile + lane) * 2 + d % 2] = FloatToBf16(vector[d]);
    }
  }
  // Scores of two vectors are never taken from copies.
  if (!g.coarse_summaries || layout.vectors > 1) return;
  if ((chunk.index + 1) % layout.ChunksPerFrame() != 0) return;
  const FrameMemory& frames = context_->setup->summaries;
  MakeCoarseTiles(g, layout.tiles_per_frame, frames.Frame(slice.summaries[0]), frames.Frame(frame),
                  chunk.layer, chunk.head - chunk.head % layout.tiles_per_frame);
}

// Source: LongHeads (Lu et al. 2024), equations 1-2 with chunk-local rotation.
void ChunkSummarizer::LongHeads(const Chunk& chunk) {
  MeanOutput(chunk);
  ScoreKeys(chunk, query_.data());
  mass_.assign(weights_.size(), 0.0f);
  context_->kernels->add_softmax(weights_.data(), scale(), static_cast<int>(weights_.size()),
                                 mass_.data());
  weights_.swap(mass_);
  AddWeightedKeys(chunk);
}

void ChunkSummarizer::MeanKey(const Chunk& chunk) {
  const int num_tokens = chunk.num_pages * context_->geometry().page_tokens;
  weights_.assign(num_tokens, 1.0f / static_cast<float>(num_tokens));
  AddWeightedKeys(chunk);
}

// result_ = largest, second_ = smallest element of Kl. Source: Tang et al. 2024 (Quest).
void ChunkSummarizer::Extremes(const Chunk& chunk) {
  const KvGeometry& g = context_->geometry();
  result_.assign(g.padded_dim, -std::numeric_limits<float>::infinity());
  second_.assign(g.padded_dim, std::numeric_limits<float>::infinity());
  std::fill(result_.begin() + g.head_dim, result_.end(), 0.0f);
  std::fill(second_.begin() + g.head_dim, second_.end(), 0.0f);
  partial_.assign(g.padded_dim, 0.0f);
  const RotationTable& pages = context_->summary_rope->pages;
  for (int page = 0; page < chunk.num_pages; ++page) {
    const std::byte* keys = Read(chunk, page).k;
    for (int t = 0; t < g.page_tokens; ++t) {
      ReadKey(g, keys, t, partial_.data());
      context_->kernels->rotate(partial_.data(), pages.Cos(page), pages.Sin(page), 1.0f,
                                g.head_dim / 2, rotated_.data());
      for (int d = 0; d < g.head_dim; ++d) {
        result_[d] = std::max(result_[d], rotated_[d]);
        second_[d] = std::min(second_[d], rotated_[d]);
      }
    }
  }
}

// Mean un-rotated key of the tokens that the chunk's own queries attend to most, each query to the
// tokens up to itself. Source: Xiao et al. 2024 (InfLLM), whose window is the chunk here.
void ChunkSummarizer::Representatives(const Chunk& chunk) {
  const KvGeometry& g = context_->geometry();
  const int num_tokens = chunk.num_pages * g.page_tokens;
  mass_.assign(num_tokens, 0.0f);
  for (int i = 0; i < num_tokens; ++i) {
    ScoreKeys(chunk, queries_.data() + int64_t{i} * g.padded_dim);
    context_->kernels->add_softmax(weights_.data(), scale(), i + 1, mass_.data());
  }
  std::vector<int> best(num_tokens);
  std::iota(best.begin(), best.end(), 0);
  std::stable_sort(best.begin(), best.end(), [&](int a, int b) { return mass_[a] > mass_[b]; });
  best.resize(kNumRepresentatives);
  std::sort(best.begin(), best.end());
  result_.assign(g.padded_dim, 0.0f);
  partial_.assign(g.padded_dim, 0.0f);
  const RotationTable& positions = context_->summary_rope->positions;
  for (int token : best) {
    const int offset = token % g.page_tokens;
    ReadKey(g, Read(chunk, token / g.page_tokens).k, offset, partial_.data());
    context_->kernels->rotate(partial_.data(), positions.Cos(offset), positions.Sin(offset), -1.0f,
                              g.head_dim / 2, rotated_.data());
    for (int d = 0; d < g.head_dim; ++d) result_[d] += rotated_[d] / kNumRepresentatives;
  }
}

// The mean of what the queries see is what the mean of their weights sees.
void ChunkSummarizer::MeanOutput(const Chunk& chunk) {
  const KvGeometry& g = context_->geometry();
  const int num_tokens = chunk.num_pages * g.page_tokens;
  mass_.assign(num_tokens, 0.0f);
  weights_.resize(static_cast<size_t>(kPassQueries) * num_tokens);
  for (int first = 0; first < num_tokens; first += kPassQueries) {
    const int num_queries = std::min(kPassQueries, num_tokens - first);
    for (int page = 0; page < chunk.num_pages; ++page) {
      ScoreQueries(chunk, page, &queries_[int64_t{first} * g.padded_dim], num_queries);
    }
    for (int r = 0; r < num_queries; ++r) {
      context_->kernels->add_softmax(&weights_[int64_t{r} * num_tokens], scale(), num_tokens,
                                     mass_.data());
    }
  }
  for (float& mass : mass_) mass /= static_cast<float>(num_tokens);
  query_.assign(g.padded_dim, 0.0f);
  for (int page = 0; page < chunk.num_pages; ++page) {
    context_->kernels->add_weighted_values(g.dtype, Read(chunk, page).v, g.page_tokens,
                                           g.padded_dim, &mass_[page * g.page_tokens],
                                           query_.data());
  }
}

void ChunkSummarizer::ScoreQueries(const Chunk& chunk, int page, const float* queries,
                                   int num_queries) {
  const KvGeometry& g = context_->geometry();
  const RotationTable& pages = context_->summary_rope->pages;
  // Keys are rotated from the start of their page: turn the queries back by the page's offset.
  if (page > 0) {
    rotated_.resize(std::max(rotated_.size(), static_cast<size_t>(num_queries) * g.padded_dim));
    context_->kernels->rotate_rows(queries, num_queries, g.padded_dim, pages.Cos(page),
                                   pages.Sin(page), -1.0f, g.head_dim / 2, rotated_.data());
    queries = rotated_.data();
  }
  const int64_t stride = int64_t{chunk.num_pages} * g.page_tokens;
  context_->kernels->score_page(g.dtype, Read(chunk, page).k, g.page_tokens, g.padded_dim, queries,
                                num_queries, &weights_[int64_t{page} * g.page_tokens], stride);
}

void ChunkSummarizer::ScoreKeys(const Chunk& chunk, const float* query) {
  weights_.resize(static_cast<size_t>(chunk.num_pages) * context_->geometry().page_tokens);
  for (int page = 0; page < chunk.num_pages; ++page) ScoreQueries(chunk, page, query, 1);
}

void ChunkSummarizer::AddWeightedKeys(const Chunk& chunk) {
  const KvGeometry& g = context_->geometry();
  const RotationTable& pages = context_->summary_rope->pages;
  const int64_t tile_bytes = int64_t{kTile} * g.padded_dim * DTypeBytes(g.dtype);
  result_.assign(g.padded_dim, 0.0f);
  for (int page = 0; page < chunk.num_pages; ++page) {
    partial_.assign(g.padded_dim, 0.0f);
    const std::byte* keys = Read(chunk, page).k;
    for (int t = 0; t < g.page_tokens; t += kTile) {
      context_->kernels->add_weighted_keys(g.dtype, keys + t / kTile * tile_bytes, g.padded_dim,
                                           &weights_[page * g.page_tokens + t], partial_.data());
    }
    context_->kernels->rotate(partial_.data(), pages.Cos(page), pages.Sin(page), 1.0f,
                              g.head_dim / 2, rotated_.data());
    for (int d = 0; d < g.head_dim; ++d) result_[d] += rotated_[d];
  }
}

}  // namespace folio
