#pragma once

#include "engine/backend/cuda/attend.h"
#include "engine/backend/cuda/tensor_core.h"

namespace folio::cuda {

inline constexpr int kTileWarps = 4;

// A part of a page as a tile of queries sees it. A query at base position b (its distance from the
// tile's anchor) is turned by `turn` pages more, and sees token t of the part if
//   lo + rel <= t < hi + rel, t < cap         rel: how far the query is from the tile's first one
// or, where `all` is set, every token below cap.
struct TilePart {
  const unsigned char* keys;
  const unsigned char* values;
  int turn;    // pages, of either sign; pinned: none
  int offset;  // of its first token in the page
  int lo;
  int hi;
  int cap;
  bool all;
  bool turn_keys;  // by their offset in the page first
  // Tokens from here on were never written.
  int stored;
};

// Beyond any tile, and far from overflow.
inline constexpr int kFar = 1 << 29;
FOLIO_DEVICE int Clamped(int64_t value) {
  return value < -kFar ? -kFar : value > kFar ? kFar : static_cast<int>(value);
}

// One query of a tile.
struct TileRow {
  int row;  // of the step; -1: none
  int head;
  int base;  // position from the anchor, of the present stage
};

// A block of kTileWarps warps that shares every load of a page among kRows queries, each warp
// having kTilesM x 16 of them. Keys and values are copied into shared memory while the other of
// both is worked on.
template <int kDim, int kTokens, int kTilesM>
class TileBlock {
 public:
  static constexpr int kRows = kTileWarps * kTilesM * 16;

  FOLIO_DEVICE explicit TileBlock(const Geometry& g) : g_(g) {}
  static constexpr int SharedBytes() {
    return kRows * kStride * 4 + 2 * kTokens * kDim * 2 + 2 * static_cast<int>(sizeof(TilePart)) +
           kRows * static_cast<int>(sizeof(TileRow));
  }

  FOLIO_DEVICE static TileRow* rows() { return reinterpret_cast<TileRow*>(parts() + 2); }
  FOLIO_DEVICE void Clear() { state_.Clear(); }

  // Loads the queries of rows() from qkv, scaled and turned: by `fixed` if that is given, else by
  // their base positions. All threads; rows() is in place and nobody reads the last queries.
  template <typename Scale>
  FOLIO_DEVICE void LoadQueries(const float* qkv, const RopeTable& rope, const float* fixed,
                                Scale scale_of) {
    const int lane = threadIdx.x % kWarp;
    for (int r = threadIdx.x / kWarp; r < kRows; r += kTileWarps) {
      const TileRow& at = rows()[r];
      float* to = q() + r * kStride;
      if (at.row < 0) {
        for (int d = lane; d < kDim; d += kWarp) to[d] = 0;
        continue;
      }
      const float* from = QueryOf(g_, qkv, at.row, at.head);
      const float scale = scale_of(at.row) * kLog2E;
      const float* pages = rope.pages.At(at.base / g_.page_tokens, kHalf);
      const float* positions = rope.positions.At(at.base % g_.page_tokens, kHalf);
      for (int m = lane; m < kHalf; m += kWarp) {
        Pair p = {from[m] * scale, from[m + kHalf] * scale};
        if (fixed != nullptr) {
          p = Turn(p, fixed, m, kHalf, 1.0f);
        } else {
          p = Turn(p, positions, m, kHalf, 1.0f);
          if (at.base >= g_.page_tokens) p = Turn(p, pages, m, kHalf, 1.0f);
        }
        to[m] = p.x;
        to[m + kHalf] = p.y;
      }
    }
    __syncthreads();
  }

  // Sees parts 0 .. count - 1; part(n, &out) says what they are. `rel_of(r)` is how far query r is
  // from the first one, below 0: it sees nothing. pinned_distance < 0: true distances.
  template <typename PartOf, typename RelOf>
  FOLIO_DEVICE void See(const RopeTable& rope, int count, int64_t pinned_distance, PartOf part_of,
                        RelOf rel_of) {
    if (count == 0) return;
    int rel[kTilesM][2];
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
      rel[m][0] = rel_of(RowOf(m, 0));
      rel[m][1] = rel_of(RowOf(m, 1));
    }
    if (threadIdx.x == 0) part_of(0, &parts()[0]);
    __syncthreads();
    FetchKeys(parts()[0]);
    FetchValues(parts()[0]);
    for (int n = 0; n < count; ++n) {
      const TilePart& part = parts()[n % 2];
      TilePart& next = parts()[(n + 1) % 2];
      if (threadIdx.x == 0 && n + 1 < count) part_of(n + 1, &next);
      WaitForCopies<1>();
      __syncthreads();
      if (part.turn_keys) TurnKeys(rope, part.offset);
      float scores[kTilesM][kTokens / 8][4];
      Score(rope, part, scores);
      __syncthreads();
      if (n + 1 < count) {
        FetchKeys(next);
      } else {
        CommitCopies();
      }
      uint32_t weights[kTilesM][kTiles][4];
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        Mask(part, pinned_distance, m, rel[m], scores[m]);
        state_.Weigh(m, scores[m]);
        PackWeights(scores[m], weights[m]);
      }
      WaitForCopies<1>();
      __syncthreads();
      if (part.stored < kTokens) ClearValues(part.stored);
      AddValues(weights);
      __syncthreads();
      if (n + 1 < count) {
        FetchValues(next);
      } else {
        CommitCopies();
      }
    }
    WaitForCopies<0>();
  }

  // Writes the result [kDim] of every query r to destination(r).to (null: nowhere): divided by its
  // sum if that is to be the whole of it, else as a state, with its maximum (base e) and sum
  // behind.
  template <typename F>
  FOLIO_DEVICE void Finish(F destination) {
    state_.Finish();
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = RowOf(m, half);
        if (rows()[r].row < 0) continue;
        const auto [to, whole] = destination(r);
        if (to == nullptr) continue;
        state_.Store(m, half, whole ? 1.0f / state_.sum[m][half] : 1.0f, to);
        if (!whole && threadIdx.x % 4 == 0) {
          to[kDim] = state_.max[m][half] * kLn2;
          to[kDim + 1] = state_.sum[m][half];
        }
      }
    }
  }

 private:
  static constexpr int kHalf = kDim / 2;
  // Rows of a lane group land in other banks.
  static constexpr int kStride = kDim + 8;
  static constexpr int kTiles = kTokens / kTileTokens;

  FOLIO_DEVICE static int group() { return threadIdx.x % kWarp / 4; }
  FOLIO_DEVICE static int place() { return threadIdx.x % 4; }
  FOLIO_DEVICE static int RowOf(int m, int half) {
    return (threadIdx.x / kWarp * kTilesM + m) * 16 + 8 * half + group();
  }

  // [kRows][kStride]
  FOLIO_DEVICE static float* q() { return DynamicShared<float>(); }
  // [kTokens / 16][kHalf][16]
  FOLIO_DEVICE static uint32_t* keys() {
    return reinterpret_cast<uint32_t*>(q() + kRows * kStride);
  }
  // [kTokens / 2][kDim]
  FOLIO_DEVICE static uint32_t* values() { return keys() + kTokens * kHalf; }
  // This one, and the next.
  FOLIO_DEVICE static TilePart* parts() {
    return reinterpret_cast<TilePart*>(values() + kTokens * kHalf);
  }

  static constexpr int kThreads = kTileWarps * kWarp;
  // Copies the 16-byte units of a part; where(u) says where unit u goes.
  template <typename Where>
  FOLIO_DEVICE static void Fetch(const unsigned char* from, uint32_t* to, Where where) {
    constexpr int kUnits = kTokens * kDim * 2 / 16;
#pragma unroll
    for (int n = 0; n < (kUnits + kThreads - 1) / kThreads; ++n) {
      const int u = threadIdx.x + n * kThreads;
      if (kUnits % kThreads == 0 || u < kUnits) CopyAsync(to + 4 * where(u), from + 16 * u);
    }
    CommitCopies();
  }
  // Units are swapped so that the loads of a product meet no bank twice.
  FOLIO_DEVICE static void FetchKeys(const TilePart& part) {
    Fetch(part.keys, keys(), [](int u) { return u ^ (u >> 3 & 1) << 1; });
  }
  FOLIO_DEVICE static void FetchValues(const TilePart& part) {
    constexpr int kUnitsPerPair = kDim / 4;
    Fetch(part.values, values(), [](int u) { return u ^ (u / kUnitsPerPair >> 1 & 3) << 1; });
  }
  // Zeros where no token was written: a weight of 0 does not cancel what may lie there.
  FOLIO_DEVICE void ClearValues(int stored) {
    for (int u = threadIdx.x; u < kTokens / 2 * kDim; u += kTileWarps * kWarp) {
      const int token = u / kDim * 2;
      if (token >= stored) values()[u] = 0;
      if (token + 1 == stored) values()[u] &= 0x0000ffffu;
    }
    __syncthreads();
  }

  // Raw keys: each is turned by its offset in the page, in shared memory.
  FOLIO_DEVICE void TurnKeys(const RopeTable& rope, int offset) {
    // Two dimensions of one token, and their partners half a head on.
    for (int u = threadIdx.x; u < kTokens * kHalf / 2; u += kTileWarps * kWarp) {
      const int token = u % kTileTokens + u / (kTileTokens * kHalf / 2) * kTileTokens;
      const int pair = u / kTileTokens % (kHalf / 2);
      const float* turn = rope.positions.At(offset + token, kHalf);
      uint32_t* low = keys() + KeyWord(token, pair);
      uint32_t* high = keys() + KeyWord(token, pair + kHalf / 2);
      const Pair first =
          Turn({FromBf16(*low & 0xffffu), FromBf16(*high & 0xffffu)}, turn, 2 * pair, kHalf, 1.0f);
      const Pair second = Turn({FromBits(*low & 0xffff0000u), FromBits(*high & 0xffff0000u)}, turn,
                               2 * pair + 1, kHalf, 1.0f);
      *low = PackBf16(first.x, second.x);
      *high = PackBf16(first.y, second.y);
    }
    __syncthreads();
  }
  // Where FetchKeys puts dimensions 2 pair and 2 pair + 1 of a token.
  FOLIO_DEVICE static int KeyWord(int token, int pair) {
    const int row = token / kTileTokens * kHalf + pair;
    const int unit = token % kTileTokens / 4 ^ (row >> 1 & 1) << 1;
    return row * kTileTokens + 4 * unit + token % 4;
  }

  // scores = the queries, turned for this part, times its keys.
  FOLIO_DEVICE void Score(const RopeTable& rope, const TilePart& part,
                          float (&scores)[kTilesM][kTokens / 8][4]) const {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[m][n][c] = 0;
      }
    }
    const int pages = part.turn < 0 ? -part.turn : part.turn;
    const float* turn = pages == 0 ? nullptr : rope.pages.At(pages, kHalf);
    const float sign = part.turn < 0 ? -1.0f : 1.0f;
    const int swap = (place() >> 1 & 1) << 1;
    const uint32_t* base = keys() + 4 * (group() / 2 ^ swap) + 2 * (group() % 2);
#pragma unroll 1
    for (int s = 0; s < kDim / 32; ++s) {
      uint32_t low[kTilesM][4];
      uint32_t high[kTilesM][4];
      LoadFragments(s, turn, sign, low, high);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint32_t* at = base + (tile * kHalf + 8 * s + place()) * kTileTokens;
        MultiplyKeys(at, tile, low, scores);
        MultiplyKeys(at + kHalf / 2 * kTileTokens, tile, high, scores);
      }
    }
  }

  FOLIO_DEVICE static void MultiplyKeys(const uint32_t* at, int tile,
                                        const uint32_t (&queries)[kTilesM][4],
                                        float (&scores)[kTilesM][kTokens / 8][4]) {
    const uint2 b0 = *reinterpret_cast<const uint2*>(at);
    const uint2 b1 = *reinterpret_cast<const uint2*>(at + 4 * kTileTokens);
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
      MmaBf16(scores[m][2 * tile], queries[m], b0.x, b1.x);
      MmaBf16(scores[m][2 * tile + 1], queries[m], b0.y, b1.y);
    }
  }

  // Dimensions 16 s .. 16 s + 15 of all queries of the warp, and their partners half a head on.
  FOLIO_DEVICE void LoadFragments(int s, const float* turn, float sign, uint32_t (&low)[kTilesM][4],
                                  uint32_t (&high)[kTilesM][4]) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int d = 16 * s + 8 * part + 2 * place();
      float2 c = {1.0f, 1.0f};
      float2 i = {0.0f, 0.0f};
      if (turn != nullptr) {
        c = *reinterpret_cast<const float2*>(turn + d);
        i = *reinterpret_cast<const float2*>(turn + kHalf + d);
        i = {sign * i.x, sign * i.y};
      }
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* from = q() + RowOf(m, half) * kStride + d;
          const float2 x = *reinterpret_cast<const float2*>(from);
          const float2 y = *reinterpret_cast<const float2*>(from + kHalf);
          low[m][2 * part + half] = PackBf16(x.x * c.x - y.x * i.x, x.y * c.y - y.y * i.y);
          high[m][2 * part + half] = PackBf16(y.x * c.x + x.x * i.x, y.y * c.y + x.y * i.y);
        }
      }
    }
  }

  FOLIO_DEVICE void Mask(const TilePart& part, int64_t pinned_distance, int m, const int (&rel)[2],
                         float (&scores)[kTokens / 8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool sees = rel[half] >= 0;
      int lo = 0;
      int hi = part.cap;
      if (!part.all) {
        lo = part.lo + rel[half];
        hi = part.hi + rel[half] < hi ? part.hi + rel[half] : hi;
      }
      if (!sees) hi = 0;
      float slope = 0;
      int64_t distance = 0;
      if (g_.alibi_slopes != nullptr && sees) {
        const TileRow& row = rows()[RowOf(m, half)];
        slope = g_.alibi_slopes[row.head] * kLog2E;
        distance = pinned_distance >= 0
                       ? pinned_distance
                       : row.base + int64_t{part.turn} * g_.page_tokens - part.offset;
      }
      if (lo <= 0 && hi >= kTokens && slope == 0) continue;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int token = n / 2 * kTileTokens + 4 * place() + 2 * c + n % 2;
          float& score = scores[n][2 * half + c];
          const int64_t apart = pinned_distance >= 0 ? distance : distance - token;
          score = token < lo || token >= hi ? -INFINITY : score - slope * static_cast<float>(apart);
        }
      }
    }
  }

  // The scores of 16 tokens in c become the A of their values.
  FOLIO_DEVICE static void PackWeights(const float (&scores)[kTokens / 8][4],
                                       uint32_t (&weights)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float(&even)[4] = scores[2 * tile];
      const float(&odd)[4] = scores[2 * tile + 1];
      weights[tile][0] = PackBf16(even[0], odd[0]);
      weights[tile][1] = PackBf16(even[2], odd[2]);
      weights[tile][2] = PackBf16(even[1], odd[1]);
      weights[tile][3] = PackBf16(even[3], odd[3]);
    }
  }

  FOLIO_DEVICE void AddValues(const uint32_t (&weights)[kTilesM][kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t* pair = values() + (tile * 8 + 2 * place()) * kDim;
#pragma unroll
      for (int n = 0; n < kDim / 32; ++n) {
        const int unit = (8 * n + group()) ^ (place() << 1);
        const uint4 b0 = *reinterpret_cast<const uint4*>(pair + 4 * unit);
        const uint4 b1 = *reinterpret_cast<const uint4*>(pair + kDim + 4 * unit);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          MmaBf16(state_.values[m][4 * n], weights[m][tile], b0.x, b1.x);
          MmaBf16(state_.values[m][4 * n + 1], weights[m][tile], b0.y, b1.y);
          MmaBf16(state_.values[m][4 * n + 2], weights[m][tile], b0.z, b1.z);
          MmaBf16(state_.values[m][4 * n + 3], weights[m][tile], b0.w, b1.w);
        }
      }
    }
  }

  const Geometry& g_;
  TileState<kDim, kTilesM> state_;
};

}  // namespace folio::cuda
