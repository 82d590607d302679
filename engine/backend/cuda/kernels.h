#pragma once

#include <cstdint>

#include "engine/backend/cuda/device_types.h"

namespace folio::cuda {

// Launches of the kernels; all pointers are the device's. Bytes and FLOPs are what a launch cannot
// do without.

enum class Weight : int { kF32, kF16, kBf16 };

// Where a kernel writes its output once more, in 16 bits; null: nowhere.
struct Twin {
  uint16_t* data = nullptr;
  bool bf16 = false;  // else fp16
};

// Rows ids[i] of a table; id -1 - k is the token of drawn[k].
//   out [num_rows, width] fp32; 2 (or 4) + 4 bytes per element
void Embed(Stream stream, Weight dtype, const void* table, const int* ids,
           const SampleResult* drawn, int num_rows, int width, float* out);
// Row-wise, x and out [num_rows, width] fp32: 8 bytes (a twin: 2 more) and 4 (RMS) or 8 FLOPs per
// element; a row's second reading comes from the first-level cache.
void RmsNorm(Stream stream, const float* x, const float* weight, float eps, int num_rows, int width,
             float* out, Twin twin);
void LayerNorm(Stream stream, const float* x, const float* weight, const float* bias, float eps,
               int num_rows, int width, float* out, Twin twin);
// RMS norms of num_heads pieces of each row, of `width` numbers, in place: 8 bytes and 4 FLOPs per
// element.
void NormHeads(Stream stream, const float* weight, float eps, int num_rows, int num_heads,
               int width, int64_t row_stride, float* x);
//   gate_up [num_rows, 2 width], out [num_rows, width]; 12 bytes (a twin: 2 more), 4 FLOPs per
//   output
void SwiGlu(Stream stream, const float* gate_up, int num_rows, int width, float* out, Twin twin);
//   in place; 8 bytes (a twin: 2 more), 8 FLOPs per element
void Gelu(Stream stream, bool exact, int64_t count, float* x, Twin twin);
//   out [num_tasks, width] = rows tasks[i].row of x; 8 bytes per element
void TakeRows(Stream stream, const float* x, const SampleTask* tasks, int num_tasks, int width,
              float* out);
//   logits [num_tasks, vocab_size]; 4 bytes per logit and pass: two for a greedy draw (the first
//   looks whether all are finite), two more for log-probabilities, 10 to 27 for a filtered draw
void SampleTokens(Stream stream, const SampleTask* tasks, int num_tasks, const float* logits,
                  int vocab_size, SampleResult* out, TopLogprobs* tops);
// fp32 activations in the format of the weights, for tensor cores; 6 bytes per element.
void Convert(Stream stream, const float* x, int64_t count, Twin out);
//   y [num_rows, outputs] (+)= x [num_rows, inputs] w [outputs, inputs]^T (+ bias, may be null)
//   2 inputs * outputs bytes, 2 num_rows * inputs * outputs FLOPs; where GemvTakes
void Gemv(Stream stream, Weight dtype, const void* w, const float* x, int num_rows, int inputs,
          int outputs, const float* bias, bool add, float* y);
bool GemvTakes(Weight dtype, int num_rows, int inputs);
// Random bf16 numbers as Backend::PackRandom has them; 2 bytes each.
void FillRandom(Stream stream, int64_t count, uint64_t seed, float deviation, void* out);
// Keys and values of every row, and sinks.
//   d the head dimension, c bytes of a number in the cache: (8 + 2 c) d bytes, 3 d FLOPs per row
//   and KV head
void StoreKv(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv);

// Summaries of chunks that the step completes: chunks[i] = (slice, index of chunk). Queries
// of a chunk come from the step's rows, older ones from the frames of pending ones.
struct ChunkTask {
  int slice;
  int64_t chunk;
};
// `scratch` holds num_tasks * SummaryScratchFloats floats.
//   per chunk of w tokens and head: (4 + 2 c) w d bytes once, 4 w^2 d FLOPs for LongHeads (half of
//   that for the four most attended tokens, w d for the others)
void Summarize(Stream stream, const Geometry& g, const Step& step, const ChunkTask* tasks,
               int num_tasks, int max_chunk_tokens, int layer, const float* qkv, float* scratch);
// Of one chunk.
int64_t SummaryScratchFloats(const Geometry& g, int max_chunk_tokens);
// Keeps the rotated queries of unfinished chunks. After Summarize.
//   (4 + c) d bytes, 3 d FLOPs per row and head
void KeepPending(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv);

// Chooses chunks, and tokens, of rows [first_row, first_row + num_rows). `scores` holds
// num_rows * num_heads * stride floats.
struct ChooseArgs {
  int first_row;
  int num_rows;
  float* scores;
  int64_t stride;
};
//   per row, head and candidate: 4 d bytes, 2 d FLOPs (a chunk), c d bytes, 2 d FLOPs (a token)
void ScoreChunks(Stream stream, const Geometry& g, const Step& step, const ChooseArgs& args,
                 int layer, const float* qkv);
void ScoreTokens(Stream stream, const Geometry& g, const Step& step, const ChooseArgs& args,
                 int layer, const float* qkv);
// After the scores. 4 bytes per candidate and pick.
void ChooseChunks(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                  const ChooseArgs& args, int layer);
void ChooseTokens(Stream stream, const Geometry& g, const Step& step, const Picks& tokens,
                  const ChooseArgs& args, int layer);

// Slices of pages at home that step.reading_rows look at in this layer come into g.slices. After
// the choice of chunks, before that of tokens: all that those are chosen from comes.
//   8 bytes per visit; every missing slice once over the link to the host, once to the device
void BringSlices(Stream stream, const Geometry& g, const Step& step, const Picks& picks, int layer,
                 int64_t visits);

// Attention of the rows of step.plain_rows or step.tensor_rows under their stages. The visits of a
// row are split over num_splits blocks whose partial results `partial`
// [rows of the list][num_heads][num_splits][head_dim + 2] takes, if that is more than one.
//   bytes: every visible slice once per row and group; 4 d FLOPs per key and head, on tensor cores
//   16 times as many products per group of up to 16 heads
void AttendPlainRows(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                     const Picks& tokens, int layer, const float* qkv, int num_splits,
                     float* partial, float* out);
void AttendTensorRows(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                      const Picks& tokens, int layer, const float* qkv, int num_splits,
                      float* partial, float* out);
//   8 d bytes per split, row and head
void MergeSplits(Stream stream, const Geometry& g, const RowList& rows, int num_splits,
                 const float* partial, float* out);

// For each head of a launch: how many rows chose a chunk, and which.
struct ChunkLists {
  int* lengths;  // [heads][num_lists]
  int* cursors;  // likewise
  int* begins;   // [heads][num_lists + 1], of a list's entries
  int* blocks;   // likewise, of its blocks of rows
  int* entries;  // [heads][choosing rows * picks.capacity], place of a row * picks.capacity + pick
};

// Attention of step.tiles, for KV heads [first_kv_head, first_kv_head + num_kv_heads).
struct TileArgs {
  Geometry g;
  Step step;
  Picks picks;
  int layer;
  int first_kv_head;
  int num_kv_heads;
  int heads_per_tile;  // set by the launch, as head_blocks per KV head
  int head_blocks;
  const float* qkv;
  // [choosing rows][heads of the launch][picks.capacity + 1][head_dim + 2]; see StateOf
  float* states;
  ChunkLists lists;
  float* out;
};
// Rows of a tile for this geometry, and the shared memory that its block needs. REQUIRES:
// HasTensorShape(g).
int RowsPerTile(const Geometry& g);
int TileSharedBytes(const Geometry& g);
//   bytes: every slice that a tile sees once per tile, 8 d per query; 4 d FLOPs per key and query
//   of the pages that any of its rows sees
void AttendTiles(Stream stream, const TileArgs& args);
// The chunks that rows of tiles chose, and the merge into `out`. After AttendTiles; lengths are 0.
//   bytes: every chosen slice once per 64 rows that chose it, 8 d per state written and read; 4 d
//   FLOPs per key and pick, whole blocks of 16 rows
void AttendPicks(Stream stream, const TileArgs& args, int num_multiprocessors);

}  // namespace folio::cuda
