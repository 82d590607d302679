#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/backend/cpu/isa.h"
#include "engine/backend/cpu/panel_format.h"
#include "engine/tensor/tensor_view.h"
#include "engine/types/limits.h"

namespace folio::cpu {

// Rows of queries that are scored with one load of a key, that are scored against summaries in a
// call, and that read one page in a call.
inline constexpr int kQueryRows = 8;
inline constexpr int kScoreRows = 32;
inline constexpr int kPageRows = 64;

inline constexpr int kMultiplyAddChains = 12;

// Products of `num_rows` rows with panels [panel_begin, panel_end) of a packed matrix.
//   panels  panel_format.h
//   x       blocks of block_rows(format) rows packed by pack_x; that of row r starts at
//           x + r * num_groups * format.x_words()
//   y       [num_rows][num_outputs]; bias may be null
//   scratch matmul_scratch_bytes of the kernels, aligned to 64; what lies there is of no meaning
struct MatMulArgs {
  const std::byte* panels = nullptr;
  int64_t panel_bytes = 0;
  int64_t num_groups = 0;  // of inputs
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  const uint32_t* x = nullptr;
  int num_rows = 0;
  int64_t num_outputs = 0;
  const float* bias = nullptr;
  bool add = false;
  // Weights of integers are fetched into the cache ahead of any number of rows (FetchesIntegers).
  bool fetch_integers = false;
  float* y = nullptr;
  std::byte* scratch = nullptr;
};

// One page of keys and values against up to kPageRows queries, folded into their running softmax.
//   k, v    one slice, layout in kv_types.h
//   q       [num_rows][dim]: rotated for this page, scaled
//   state   per row: [dim] weighted values, then max, then sum
//   lo, hi  per row: tokens of the page that it sees, lo < hi
struct AttendPageArgs {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  // What comes after k and v, fetched into the cache on the way; k and v again if nothing does.
  const std::byte* next_k = nullptr;
  const std::byte* next_v = nullptr;
  // Of a sealed page: scales of its channels of keys [dim], and of its values [page_tokens].
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
  int dim = 0;
  int num_rows = 0;
  const float* q = nullptr;
  std::array<int, kPageRows> lo;
  std::array<int, kPageRows> hi;
  std::array<float*, kPageRows> state;
  // score_cap * tanh(score / score_cap) takes the place of a score; 0: it stays.
  float score_cap = 0;
  // Per row, if biased: bias + bias_slope * token is added to the score of a token of the page.
  bool biased = false;
  std::array<float, kPageRows> bias;
  std::array<float, kPageRows> bias_slope;
};

// Summaries of 16 chunks, a tile that lies as 16 keys do, against up to kScoreRows queries.
struct ScoreChunksArgs {
  DType dtype = DType::kF32;
  const std::byte* tile = nullptr;
  // Fetched into the cache on the way; `tile` again if nothing comes next.
  const std::byte* next = nullptr;
  int dim = 0;
  int num_rows = 0;
  // Of the first row, among those that pack_chunk_queries packed: a multiple of kScoreRows.
  const std::byte* q = nullptr;
  std::array<float, kScoreRows> thresholds;
  // Out: [num_rows][16], and per row a bit for every chunk whose score is above the threshold.
  alignas(64) std::array<float, kScoreRows * 16> scores;
  std::array<uint32_t, kScoreRows> above;
};

// A query as it meets 8-bit copies of summaries (coarse_summary.h): integers 128 * high + low.
struct CoarseQuery {
  alignas(64) std::array<int8_t, kMaxHeadDim> high = {};
  alignas(64) std::array<int8_t, kMaxHeadDim> low = {};
  int32_t sum = 0;   // of the integers
  float unit = 0;    // of an integer
  float margin = 0;  // what a score may be off at most, beside the scale of a tile
};

// 8-bit copies of the summaries of 16 chunks each against queries: either all of num_tiles tiles,
// or each row against a tile of its own.
struct CoarseScoresArgs {
  bool own_tiles = false;
  const std::byte* tiles = nullptr;  // [num_tiles] or [num_rows]
  const float* scales = nullptr;     // likewise
  // What comes next, fetched into the cache on the way; the same again if nothing does.
  const std::byte* next = nullptr;
  const float* next_scales = nullptr;
  int num_tiles = 1;
  int dim = 0;
  int num_rows = 0;
  const CoarseQuery* queries = nullptr;  // [num_rows]
  // Out: [num_rows][num_tiles], a row every row_floats; what the best of the chunks of a tile
  // scores at least and at most, all of it where nothing is known.
  int64_t row_floats = 0;
  float* least = nullptr;
  float* most = nullptr;
};

// Running softmax of one row before any key: dim zeros, then max and sum.
void InitState(float* state, int dim);

// The inner loops, one set per instruction set. What a row gets never depends on the rows beside
// it.
struct Kernels {
  // Rows that one pass over a panel serves.
  int matmul_rows = 0;
  int bf16_matmul_rows = 0;
  int integer_matmul_rows = 0;
  int block_rows(const PanelFormat& format) const {
    if (format.integers()) return integer_matmul_rows;
    return format.codec == PanelFormat::Codec::kBf16 ? bf16_matmul_rows : matmul_rows;
  }
  // Either some panels stay in a cache while all rows pass, or the inputs of so many rows, if not
  // 0, while panels do.
  int64_t panel_bytes_at_once = 512 << 10;
  int bf16_rows_at_once = 0;
  int rows_at_once(const PanelFormat& format) const {
    return format.codec == PanelFormat::Codec::kBf16 ? bf16_rows_at_once : 0;
  }
  // Packs one block of num_rows <= block_rows rows, x [num_rows][inputs], for weights of `format`,
  // into num_rows * num_groups * x_words words. For integers every group of a row is rounded to
  // 8 bits: nearest, ties to even, of x * (127 / max |x|), which their scale, max |x| / 127,
  // undoes.
  void (*pack_x)(const PanelFormat& format, const float* x, int num_rows, int64_t inputs,
                 uint32_t* packed) = nullptr;
  // Weight bytes are read once per block of rows; 2 * inputs * outputs FLOPs per row. Of integers:
  //   y[o] = sum over groups of float(sum of x[i] * w[o][i], exact) * (w_scale[o] * x_scale)
  void (*matmul)(const PanelFormat& format, const MatMulArgs& args) = nullptr;
  int64_t (*matmul_scratch_bytes)(const PanelFormat& format, const MatMulArgs& args) = nullptr;

  void (*attend_page)(DType dtype, int page_tokens, const AttendPageArgs& args) = nullptr;
  // The same of a page whose numbers have `bits`. With q' = q * k_scales and p' = the weights of
  // the softmax * v_scales, both rounded to integers of 8 bits, the largest magnitude of each row
  // being 127, all sums of products are exact.
  void (*attend_sealed_page)(int bits, int page_tokens, const AttendPageArgs& args) = nullptr;
  // Scores of up to kScoreRows queries against 16 chunk summaries, in fp32 whatever those are;
  // between begin_scores and end_scores of the same thread, which calls no other kernel meanwhile.
  void (*score_chunks)(ScoreChunksArgs* args) = nullptr;
  void (*begin_scores)() = nullptr;
  void (*end_scores)() = nullptr;
  // Queries [num_rows][dim] as score_chunks reads them, chunk_query_bytes aligned to 64.
  void (*pack_chunk_queries)(DType dtype, const float* q, int num_rows, int dim,
                             std::byte* packed) = nullptr;
  int64_t (*chunk_query_bytes)(DType dtype, int num_rows, int dim) = nullptr;
  void (*score_coarsely)(const CoarseScoresArgs& args) = nullptr;
  //   how many of values [n] are above; n a multiple of 16
  int64_t (*count_above)(const float* values, int64_t n, float threshold) = nullptr;
  //   out [num_rows][page_tokens], a row every out_stride floats = q [num_rows][dim] . keys of one
  //   page
  void (*score_page)(DType dtype, const std::byte* keys, int page_tokens, int dim, const float* q,
                     int num_rows, float* out, int64_t out_stride) = nullptr;
  //   out [dim] += sum over the 16 keys of one tile of weights[t] * key t
  void (*add_weighted_keys)(DType dtype, const std::byte* tile, int dim, const float* weights,
                            float* out) = nullptr;
  //   out [dim] += sum over the values of one page of weights[t] * value t
  void (*add_weighted_values)(DType dtype, const std::byte* values, int page_tokens, int dim,
                              const float* weights, float* out) = nullptr;
  //   out [n] += softmax(scale * values); scale > 0; values are lost
  void (*add_softmax)(float* values, float scale, int n, float* out) = nullptr;
  //   out [n] = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, double eps, int n, float* out) = nullptr;
  //   out [n] = gate / (1 + exp(-gate)) * up
  void (*swiglu)(const float* gate, const float* up, int n, float* out) = nullptr;
  //   out = x rotated: pair m = elements (m, m + half); sin_sign -1 rotates back
  void (*rotate)(const float* x, const float* cos, const float* sin, float sin_sign, int half,
                 float* out) = nullptr;
  //   the same of num_rows vectors by one rotation; row_floats from one to the next, in x and out
  void (*rotate_rows)(const float* x, int num_rows, int64_t row_floats, const float* cos,
                      const float* sin, float sin_sign, int half, float* out) = nullptr;
  //   to = 16 keys of one tile, each turned by its own angles, cos and sin [half][16]: pair m
  //   (dimensions m, m + half) is made of dimensions m and m + partner of `from`. partner is half,
  //   or 0 where both members of a pair are stored as one number
  void (*rotate_tile)(DType dtype, const std::byte* from, int partner, const float* cos,
                      const float* sin, int half, std::byte* to) = nullptr;

  // Ceilings for folio-bench; the results mean nothing.
  uint32_t (*read_bytes)(const std::byte* data, int64_t bytes) = nullptr;
  float (*multiply_add)(int64_t steps, float x) = nullptr;
  int multiply_add_flops = 0;  // per step
  // Of the matrix unit, in bf16; null where there is none.
  void (*multiply_tiles)(int64_t steps) = nullptr;
  int multiply_tiles_flops = 0;  // per step
};

// REQUIRES: CpuSupports(isa).
const Kernels& KernelsFor(Isa isa);

namespace portable {
const Kernels& Table();
}
namespace avx2 {
const Kernels& Table();
}
namespace avx512 {
const Kernels& Table();
}
namespace avx512_vnni {
const Kernels& Table();
}
namespace avx512_bf16 {
const Kernels& Table();
}
namespace amx {
const Kernels& Table();
}

}  // namespace folio::cpu
