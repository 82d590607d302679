// Attention of many queries over a page of integers, on the matrix unit (amx_tiles.h): lines of a
// sealed page lie as its second operand wants them. Products alone are the unit's, whose sums are
// exact; all else is done as in sealed_attention-inl.h, with the same bits. Rows go in groups of
// 16, and what is left over by vectors.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/kernels/amx_rows-inl.h"
#include "engine/backend/cpu/kernels/amx_tiles.h"
#include "engine/backend/cpu/kernels/sealed_attention-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Quads of a row of a tile, which are lines of a page.
constexpr int kTileQuads = kTileRowBytes / 4;

// Lines as the unit multiplies them: signed numbers, without a bias.
struct TileLine {
  static constexpr int kBias = 0;
};
// Rows of a group as the first operand.
template <int kMost>
using TileQuadRows = QuadRows<TileLine, kTileRows, kMost>;

// Sums of a group, [16][kWeightStride].
struct TileSums {
  alignas(64) int32_t numbers[kTileRows][kWeightStride];
};
static_assert(kMaxHeadDim <= kWeightStride);

// Lines of 4 bits of keys or values as those of 8: `columns` lines side by side have the next quads
// `columns` lines further. out [2 * num_lines][64]
void UnpackLines(const std::byte* lines, int64_t num_lines, int64_t columns, std::byte* out) {
  using Bytes = int8_t __attribute__((vector_size(kRegBytes)));
  const auto store = [](std::byte* to, BitReg nibbles) {
    const Bytes bytes = (Bytes)nibbles - int8_t{SealedLine<4, false>::kBias};
    std::memcpy(to, &bytes, sizeof(bytes));
  };
  for (int64_t line = 0; line < num_lines; ++line) {
    std::byte* const low = out + (line / columns * 2 * columns + line % columns) * kLineBytes;
    std::byte* const high = low + columns * kLineBytes;
    for (int at = 0; at < kLineBytes; at += kRegBytes) {
      const BitReg both = LoadReg<BitReg>(lines + line * kLineBytes + at);
      store(low + at, both & 0x0f0f0f0fu);
      store(high + at, both >> 4 & 0x0f0f0f0fu);
    }
  }
}

// sums [16][16 * num_columns] = rows * columns, quads [begin, end) of them: quad s of column c is
// the line at data + s * stride + c * column_bytes.
template <typename Tiles, int kMost>
void MultiplyLines(const std::byte* data, int64_t stride, int64_t column_bytes, int num_columns,
                   int begin, int end, const TileQuadRows<kMost>& rows, TileSums* sums) {
  constexpr int64_t kRowBytes = sizeof(rows.quads[0]);
  for (int c = 0; c < num_columns; ++c) {
    Tiles::template Zero<0>();
    for (int s = begin; s < end; s += kTileQuads) {
      Tiles::template Load<1>(&rows.quads[0][s], kRowBytes);
      LoadPairs<Tiles, 2>(data + s * stride + c * column_bytes, stride, end - s);
      Tiles::template AddBytes<0, 1, 2>();
    }
    Tiles::template Store<0>(&sums->numbers[0][c * 16], sizeof(sums->numbers[0]));
  }
}

// A page as lines of 8 bits.
struct TilePage {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
};

template <typename Tiles>
void AttendTileRows(int page_tokens, const AttendPageArgs& args, const TilePage& page,
                    const float* logs, int first_row, Fetcher* fetcher) {
  const int dim = args.dim;
  alignas(64) float p[kTileRows][kWeightStride];
  TileSums sums;
  TileQuadRows<kMaxHeadDim> q;
  q.Set(args.q + first_row * dim, dim, args.k_scales, dim, fetcher);
  MultiplyLines<Tiles>(page.k, kLineBytes, int64_t{kTileTokens} * dim, page_tokens / kTileTokens, 0,
                       dim / 4, q, &sums);
  for (int r = 0; r < kTileRows; ++r) {
    for (int t = 0; t < page_tokens; t += kTileTokens) {
      Store(p[r] + t, ToFloat(LoadInts(sums.numbers[r] + t)) * Splat(q.scales[r]));
    }
  }
  TileQuadRows<kMaxPageTokens> weights;
  const PageFold fold = FoldSealedScores(page_tokens, args, first_row, p, logs, &weights, fetcher);
  MultiplyLines<Tiles>(page.v, int64_t{dim} * 4, kLineBytes, dim / 16,
                       fold.begin / (4 * kTileQuads) * kTileQuads, (fold.end + 3) / 4, weights,
                       &sums);
  for (int r = 0; r < kTileRows; ++r) {
    float* const state = args.state[first_row + r];
    const Vec factor = Splat(fold.factors[r]);
    for (int d = 0; d < dim; d += 16) {
      const Vec values = ToFloat(LoadInts(sums.numbers[r] + d));
      Store(state + d, Fma(values, weights.scales[r], Load(state + d) * factor));
    }
  }
}

template <typename Tiles>
void AttendSealedTiles(int bits, int page_tokens, const AttendPageArgs& args) {
  if (args.num_rows < kTileRows) return AttendSealedPage(bits, page_tokens, args);
  const int dim = args.dim;
  const int64_t number_bytes = int64_t{page_tokens} * dim;
  alignas(64) std::byte unpacked[2 * kMaxPageTokens * kMaxHeadDim];
  TilePage page{args.k, args.v};
  if (bits == 4) {
    page = {unpacked, unpacked + number_bytes};
    UnpackLines(args.k, number_bytes / 2 / kLineBytes, 1, unpacked);
    UnpackLines(args.v, number_bytes / 2 / kLineBytes, dim / 16, unpacked + number_bytes);
  }
  TileConfig config;
  for (int tile = 0; tile < 3; ++tile) config.Set(tile, kTileRows, kTileRowBytes);
  Tiles::Configure(config);
  alignas(64) float logs[kMaxPageTokens];
  LogsOfScales(page_tokens, args.v_scales, logs);
  Fetcher fetcher = FetcherOfNext(bits, page_tokens, args, 0);
  int row = 0;
  for (; row + kTileRows <= args.num_rows; row += kTileRows) {
    AttendTileRows<Tiles>(page_tokens, args, page, logs, row, &fetcher);
    fetcher.Rest();
  }
  Tiles::Release();
  bits == 8 ? AttendIntegerPage<8>(page_tokens, args, row)
            : AttendIntegerPage<4>(page_tokens, args, row);
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
