#pragma once

#include "engine/backend/cuda/kernel_math.h"

namespace folio::cuda {

// What tensor cores need: the product of one warp (bf16, fp32 sums), and copies into shared memory
// that run beside it. All of it is in sm_80 and newer.
//
// A is [16 rows][16], B [16][8 columns], C [16][8]. Lane l is in group g = l / 4 at place t = l % 4
// and holds pairs of numbers, the first in the lower half of a word:
//   a0 A[g][2t, 2t+1]      a1 A[g+8][2t, 2t+1]    a2 A[g][2t+8, 2t+9]   a3 A[g+8][2t+8, 2t+9]
//   b0 B[2t, 2t+1][g]      b1 B[2t+8, 2t+9][g]
//   c0 C[g][2t]            c1 C[g][2t+1]          c2 C[g+8][2t]         c3 C[g+8][2t+1]
//
// The cache is laid out for this (kv_types.h). With two tokens per place, a tile of 16 tokens is
// two B of the scores: a word of K holds two dimensions of one token, b0 and b1 of column g are
// token 2g + j, j the B. And a word of V holds two tokens of one dimension: the scores in c become
// the A of the weighted values without leaving their lanes, a0 being tokens (4t, 4t+1), a2 (4t+2,
// 4t+3).

#ifdef __CUDACC__

FOLIO_DEVICE void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The lower half is x.
FOLIO_DEVICE uint32_t PackBf16(float x, float y) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
}

FOLIO_DEVICE uint32_t PackFp16(float x, float y) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
}

// 16 bytes, both addresses aligned to as many. Complete after WaitForCopies.
FOLIO_DEVICE void CopyAsync(void* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
// Ends a group of copies.
FOLIO_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread are under way.
template <int kPending>
FOLIO_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Of a matrix [8][8] of 16-bit numbers, lane (g, t) giving [g][2t, 2t+1]: its transpose likewise.
FOLIO_DEVICE uint32_t Transpose8x8(uint32_t word) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

// Brings the 128 bytes around `global` into the second-level cache.
FOLIO_DEVICE void Prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// 2^x, to 2^-22 of it; 0 below 2^-126.
FOLIO_DEVICE float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

#else

FOLIO_DEVICE void Prefetch(const void*) {}
FOLIO_DEVICE float Exp2(float x) { return exp2f(x); }
FOLIO_DEVICE uint32_t PackBf16(float x, float y) {
  return ToBf16(x) | static_cast<uint32_t>(ToBf16(y)) << 16;
}
FOLIO_DEVICE uint32_t PackFp16(float x, float y) {
  return ToFp16(x) | static_cast<uint32_t>(ToFp16(y)) << 16;
}
template <int kPending>
FOLIO_DEVICE void WaitForCopies() {
  FinishCopies(kPending);
}

#endif

// Running softmax of kTilesM x 16 queries in one warp, base 2: scores come multiplied by log2(e).
// Lane (g, t) keeps rows g and g + 8 of each 16, and of their weighted values the dimensions
// 32 n + 8 t + 4 c + j in values[m][4 n + j][c (+ 2 for row g + 8)].
template <int kDim, int kTilesM>
struct TileState {
  static constexpr int kColumns = kDim / 8;
  float values[kTilesM][kColumns][4];
  float max[kTilesM][2];
  float sum[kTilesM][2];

  FOLIO_DEVICE void Clear() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) values[m][n][c] = 0;
      }
      max[m][0] = max[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }
  }

  // Turns scores [n][4] of one 16 rows, masked ones minus infinity, into weights.
  template <int kScores>
  FOLIO_DEVICE void Weigh(int m, float (&scores)[kScores][4]) {
    const float keep[2] = {WeighRow(m, 0, scores), WeighRow(m, 1, scores)};
    // After some pages the maxima hardly ever move.
    if (keep[0] == 1.0f && keep[1] == 1.0f) return;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) values[m][n][c] *= keep[c / 2];
    }
  }

  FOLIO_DEVICE void Finish() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[m][r] += __shfl_xor_sync(kAllLanes, sum[m][r], 1);
        sum[m][r] += __shfl_xor_sync(kAllLanes, sum[m][r], 2);
      }
    }
  }

  // Of row g + 8 r; returns the factor of what was summed before.
  template <int kScores>
  FOLIO_DEVICE float WeighRow(int m, int r, float (&scores)[kScores][4]) {
    float top = max[m][r];
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
      top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    const float shift = top == -INFINITY ? 0.0f : top;
    const float keep = Exp2(max[m][r] - shift);
    float added = 0;
#pragma unroll
    for (int n = 0; n < kScores; ++n) {
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        scores[n][c] = Exp2(scores[n][c] - shift);
        added += scores[n][c];
      }
    }
    // Each lane sums its own columns; Finish adds them up.
    sum[m][r] = sum[m][r] * keep + added;
    max[m][r] = top;
    return keep;
  }

  // Writes row g (r = 0) or g + 8 of the m-th 16, times `factor`.
  FOLIO_DEVICE void Store(int m, int r, float factor, float* to) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          to[32 * n + 8 * t + 4 * c + j] = values[m][4 * n + j][2 * r + c] * factor;
        }
      }
    }
  }
};

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;

}  // namespace folio::cuda
