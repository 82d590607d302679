// Rows of numbers as integers of 8 bits, each row with a scale of its own.
#pragma once

#include <cstring>

#include "engine/backend/cpu/kernels/fetcher-inl.h"
#include "engine/backend/cpu/kernels/int_vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Magnitudes as integers, which are in the same order, and what is not finite above all others.
FOLIO_INLINE IntVec Magnitudes(Vec numbers) { return BitsOf(Abs(numbers)); }

// Lane r: the sum of row r.
template <int kRows>
FOLIO_INLINE IntVec SumsOfIntRows(const IntVec (&rows)[kRows]) {
  alignas(64) float lanes[16][16];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) Store(lanes[r], FromBits(rows[r]));
  return BitsOf(
      ReduceRows<kRows>(lanes, [](Reg a, Reg b) { return (Reg)((IntReg)a + (IntReg)b); }));
}

// put(i, numbers) for numbers [i, i + 64) of n, a multiple of 16; those behind the last are 0.
template <typename NumberFn, typename PutFn>
FOLIO_INLINE void ForSixtyFours(int n, NumberFn number, PutFn put) {
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    const Vec numbers[4] = {number(i), number(i + 16), number(i + 32), number(i + 48)};
    put(i, numbers);
  }
  if (i == n) return;
  Vec numbers[4] = {};
  for (int j = 0; i + 16 * j < n; ++j) numbers[j] = number(i + 16 * j);
  put(i, numbers);
}

// What kRows rows of numbers are multiplied with lines as: quads of integers of 8 bits.
template <typename Line, int kRows, int kMost>
struct QuadRows {
  alignas(64) uint32_t quads[kRows][kMost / 4];
  alignas(64) float scales[16];    // per row: undo the rounding
  alignas(64) int32_t biases[16];  // per row: what a sum over all quads has too much of, negated

  // quads = x [kRows][row_floats] * factors [n], the largest of each row being 127.
  FOLIO_INLINE void Set(const float* x, int64_t row_floats, const float* factors, int n,
                        Fetcher* fetcher) {
    alignas(64) float lanes[16][16];
    IntVec parts[kRows] = {};
    for (int i = 0; i < n; i += 16) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec factor = Load(factors + i);
        parts[r] = Max(parts[r], Magnitudes(Load(x + r * row_floats + i) * factor));
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) Store(lanes[r], FromBits(parts[r]));
    const Vec most = ReduceRows<kRows>(
        lanes, [](Reg a, Reg b) { return (Reg)((IntReg)a > (IntReg)b ? (IntReg)a : (IntReg)b); });
    alignas(64) float inverses[16];
    Store(inverses, Splat(127.0f) / Max(most, Splat(1e-30f)));
    Store(scales, most / Splat(127.0f));
    IntVec sums[kRows] = {};
    for (int i = 0; i < n; i += 64) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        Vec part[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          fetcher->Line();
          const int at = i + 16 * j;
          part[j] = at < n ? Load(x + r * row_floats + at) * Load(factors + at) : Zero();
          part[j] = part[j] * Splat(inverses[r]);
        }
        Put(r, i, part, &sums[r]);
      }
    }
    SetBiases(sums);
  }

  // Numbers [first, first + 64) of a row, the largest of which are 127, and what SetBiases takes.
  FOLIO_INLINE void Put(int row, int first, const Vec (&numbers)[4], IntVec* sum) {
    const BitVec bytes = RoundedBytes(numbers);
    std::memcpy(&quads[row][first / 4], &bytes, sizeof(bytes));
    if constexpr (Line::kBias != 0) *sum = *sum + SumsOfBytes(bytes);
  }
  FOLIO_INLINE void SetBiases(const IntVec (&sums)[kRows]) {
    if constexpr (Line::kBias != 0) {
      const IntVec negated = SumsOfIntRows(sums) * -Line::kBias;
      std::memcpy(biases, &negated, sizeof(biases));
    }
  }
  // A sum over all quads of a row.
  FOLIO_INLINE IntVec WithoutBias(int row, IntVec sum) const {
    if constexpr (Line::kBias == 0) return sum;
    return sum + SplatInt(biases[row]);
  }
};

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
