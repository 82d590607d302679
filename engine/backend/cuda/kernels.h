#pragma once

#include <cstdint>

#include "engine/backend/cuda/device_types.h"

namespace folio::cuda {

// Launches of the kernels; all pointers are the device's. Bytes and FLOPs are what a launch cannot
// do without.

enum class Weight : int { kF32, kF16, kBf16 };

//   out [num_rows, width] fp32 = rows ids[i] of the table
void Embed(Stream stream, Weight dtype, const void* table, const int* ids, int num_rows, int width,
           float* out);
//   weights read once per row; 8 bytes per element
void RmsNorm(Stream stream, const float* x, const float* weight, float eps, int num_rows, int width,
             float* out);
void LayerNorm(Stream stream, const float* x, const float* weight, const float* bias, float eps,
               int num_rows, int width, float* out);
void SwiGlu(Stream stream, const float* gate_up, int num_rows, int width, float* out);
void Gelu(Stream stream, bool exact, int64_t count, float* x);
void TakeRows(Stream stream, const float* x, const int* rows, int num_rows, int width, float* out);
void AddBias(Stream stream, const float* bias, int num_rows, int width, float* y);
// fp32 activations in the format of the weights, for tensor cores.
void Convert(Stream stream, const float* x, int64_t count, Weight dtype, void* out);
// Keys and values of every row, and sinks.
void StoreKv(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv);

// Representations of chunks that the step completes: chunks[i] = (slice, index of chunk). Queries
// of a chunk come from the step's rows, older ones from `pending`.
struct ChunkTask {
  int slice;
  int64_t chunk;
};
//   4 w^2 d FLOPs per chunk and head for LongHeads
void Summarize(Stream stream, const Geometry& g, const Step& step, const ChunkTask* tasks,
               int num_tasks, int max_chunk_tokens, int layer, const float* qkv);
// Keeps the rotated queries of unfinished chunks. After Summarize.
void KeepPending(Stream stream, const Geometry& g, const Step& step, int layer, const float* qkv);

// Chooses chunks, and tokens, of rows [first_row, first_row + num_rows). `scores` holds
// num_rows * num_heads * stride floats.
struct ChooseArgs {
  int first_row;
  int num_rows;
  float* scores;
  int64_t stride;
};
void ChooseChunks(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
                  const ChooseArgs& args, int layer, const float* qkv);
void ChooseTokens(Stream stream, const Geometry& g, const Step& step, const Picks& tokens,
                  const ChooseArgs& args, int layer, const float* qkv);

// Attention of every row under its stages. The visits of a row are split over num_splits blocks
// whose partial results `partial` [rows][num_heads][num_splits][head_dim + 2] takes, if that is
// more than one.
//   bytes: every visible slice once per row and group; 4 d FLOPs per key and head
void Attend(Stream stream, const Geometry& g, const Step& step, const Picks& picks,
            const Picks& tokens, int layer, const float* qkv, int num_splits, float* partial,
            float* out);

}  // namespace folio::cuda
