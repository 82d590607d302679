// Vectors of 16 floats, whatever the registers are: one of AVX-512, two of AVX, four of SSE or of
// NEON.
// Everything that depends on the instruction set is in this file and in int_vec-inl.h. Products are
// fused only where Fma says so (-ffp-contract=off): what is fused must not depend on how the
// compiler unrolls one loop or another, or a row's bits would depend on the rows beside it.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/half.h"

#define FOLIO_INLINE inline __attribute__((always_inline))

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kRegBytes = 64;
// As many as stay in registers: rows of a matrix product, those of them for which a pass over a
// weight panel can take all 32 outputs, and running sums of attention.
constexpr int kMatMulRows = 12;
constexpr int kWideRows = 12;
constexpr int kSums = 16;
constexpr int kMaxRows = 8;
#elif defined(__AVX2__)
constexpr int kRegBytes = 32;
constexpr int kMatMulRows = 6;
constexpr int kWideRows = 1;
constexpr int kSums = 4;
constexpr int kMaxRows = 6;
#else
constexpr int kRegBytes = 16;
constexpr int kMatMulRows = 2;
constexpr int kWideRows = 0;
constexpr int kSums = 2;
constexpr int kMaxRows = 2;
#endif

#if defined(__AVX512BF16__)
constexpr bool kNativeBf16 = true;
#else
constexpr bool kNativeBf16 = false;
#endif

// Fetches a line from memory into the second-level cache: the first one has too few buffers for
// lines that are on their way.
FOLIO_INLINE void Fetch(const std::byte* line) { __builtin_prefetch(line, 0, 2); }
constexpr int64_t kFetchBytes = 12 << 10;
// The same of a stream of weights, so far ahead: Intel's own prefetch stops at page borders. AMD's,
// on the processors that have bf16 products, is as fast by itself as beside this, or faster. It
// comes too late where few bytes meet many instructions, and lines that are fetched into the
// first-level cache come in time (docs/benchmarks/history.md).
#if !defined(__AVX512BF16__) || defined(__AMX_TILE__)
constexpr bool kFetchesAllStreams = true;
FOLIO_INLINE void FetchAhead(const std::byte* stream) { Fetch(stream + kFetchBytes); }
#else
constexpr bool kFetchesAllStreams = false;
FOLIO_INLINE void FetchAhead(const std::byte* stream) { __builtin_prefetch(stream + 4096, 0, 3); }
#endif
// A line that is about to be written.
FOLIO_INLINE void FetchToWrite(float* line) { __builtin_prefetch(line, 1, 3); }

constexpr int kLanes = kRegBytes / 4;
constexpr int kRegs = 16 / kLanes;

using Reg = float __attribute__((vector_size(kRegBytes)));
using IntReg = int32_t __attribute__((vector_size(kRegBytes)));
using BitReg = uint32_t __attribute__((vector_size(kRegBytes)));

struct Vec {
  Reg r[kRegs];
};
struct BitVec {
  BitReg r[kRegs];
};

// The result of f(register index) for all registers of a vector.
template <typename V, typename F>
FOLIO_INLINE V ForRegs(F f) {
  V v;
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) v.r[i] = f(i);
  return v;
}

FOLIO_INLINE Reg SplatReg(float x) { return x - Reg{}; }
FOLIO_INLINE Vec Splat(float x) {
  return ForRegs<Vec>([&](int) { return SplatReg(x); });
}
FOLIO_INLINE Vec Zero() {
  return ForRegs<Vec>([](int) { return Reg{}; });
}

FOLIO_INLINE Vec operator+(Vec a, Vec b) {
  return ForRegs<Vec>([&](int i) { return a.r[i] + b.r[i]; });
}
FOLIO_INLINE Vec operator-(Vec a, Vec b) {
  return ForRegs<Vec>([&](int i) { return a.r[i] - b.r[i]; });
}
FOLIO_INLINE Vec operator*(Vec a, Vec b) {
  return ForRegs<Vec>([&](int i) { return a.r[i] * b.r[i]; });
}
FOLIO_INLINE Vec operator/(Vec a, Vec b) {
  return ForRegs<Vec>([&](int i) { return a.r[i] / b.r[i]; });
}
FOLIO_INLINE Vec Max(Vec a, Vec b) {
  return ForRegs<Vec>([&](int i) { return a.r[i] > b.r[i] ? a.r[i] : b.r[i]; });
}

FOLIO_INLINE Reg Fma(Reg a, Reg b, Reg c) {
#if defined(__AVX512F__)
  return (Reg)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Reg)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Reg)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
// a * b + c, fused where there is an instruction for it.
FOLIO_INLINE Vec Fma(Vec a, Vec b, Vec c) {
  return ForRegs<Vec>([&](int i) { return Fma(a.r[i], b.r[i], c.r[i]); });
}
FOLIO_INLINE Vec Fma(Vec a, float b, Vec c) {
  const Reg splat = SplatReg(b);
  return ForRegs<Vec>([&](int i) { return Fma(a.r[i], splat, c.r[i]); });
}

// Register by register: a copy of the whole struct goes through the stack.
template <typename R>
FOLIO_INLINE R LoadReg(const void* p) {
  R r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
FOLIO_INLINE Vec Load(const float* p) {
  return ForRegs<Vec>([&](int i) { return LoadReg<Reg>(p + i * kLanes); });
}
FOLIO_INLINE void Store(float* p, Vec v) {
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) std::memcpy(p + i * kLanes, &v.r[i], sizeof(Reg));
}
FOLIO_INLINE BitVec LoadBits(const std::byte* p) {
  return ForRegs<BitVec>([&](int i) { return LoadReg<BitReg>(p + i * kRegBytes); });
}

FOLIO_INLINE Vec Abs(Vec v) {
  return ForRegs<Vec>([&](int i) { return (Reg)((BitReg)v.r[i] & 0x7fffffffu); });
}

// The two halves of 16 bf16 pairs, as fp32: the first of each pair lies in the low bits.
FOLIO_INLINE Vec LowBf16(BitVec pairs) {
  return ForRegs<Vec>([&](int i) { return (Reg)(pairs.r[i] << 16); });
}
FOLIO_INLINE Vec HighBf16(BitVec pairs) {
  return ForRegs<Vec>([&](int i) { return (Reg)(pairs.r[i] & 0xffff0000u); });
}

// kLanes consecutive fp16 values.
FOLIO_INLINE Reg LoadFp16Reg(const uint16_t* p) {
#if defined(__AVX512F__)
  // The masked form: g++ 12 takes the plain one for a use of an uninitialised register.
  return (Reg)_mm512_maskz_cvtph_ps(0xffff,
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (Reg)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  // As Fp16ToFloat, lane by lane.
  using HalfReg = uint16_t __attribute__((vector_size(kRegBytes / 2)));
  const BitReg bits = __builtin_convertvector(LoadReg<HalfReg>(p), BitReg);
  const BitReg magnitude = bits & 0x7fffu;
  const Reg scaled = (Reg)(magnitude << 13) * SplatReg(0x1p112f);
  const BitReg infinite_or_nan = (BitReg)(magnitude >= 0x7c00u) & 0x7f800000u;
  return (Reg)((BitReg)scaled | infinite_or_nan | (bits & 0x8000u) << 16);
#endif
}
FOLIO_INLINE Vec LoadFp16(const uint16_t* p) {
  return ForRegs<Vec>([&](int i) { return LoadFp16Reg(p + i * kLanes); });
}

struct FloatPair {
  float first;
  float second;
};

// Two consecutive operands of DotPair, as the instruction set wants them: bits of two bf16 values
// where there are bf16 dot products, fp32 otherwise, which is the more exact of the two.
#if defined(__AVX512BF16__)
using Pair = uint32_t;
constexpr Pair kPairOfOnes = 0x3f803f80;

// out [n/2]; n a multiple of 16.
FOLIO_INLINE void PackPairs(const float* x, int64_t n, Pair* out) {
  for (int64_t i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i / 2),
                        (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
  }
}

// acc + first of each pair of weights * first of x + second * second.
FOLIO_INLINE Vec DotPair(Vec acc, BitVec pairs, Pair x) {
  return {{(Reg)_mm512_dpbf16_ps((__m512)acc.r[0], (__m512bh)pairs.r[0],
                                 (__m512bh)_mm512_set1_epi32(static_cast<int>(x)))}};
}

// A line of 16 pairs of weights in kPairParts parts, and acc + a part * that of x. Where many rows
// meet the same line, all of them meet one part before the next is loaded: registers hold no more
// beside their sums.
constexpr int kPairParts = 1;
FOLIO_INLINE BitVec LoadPairPart(const std::byte* line, int /*part*/) { return LoadBits(line); }
FOLIO_INLINE Vec AddPairPart(Vec acc, BitVec pairs, Pair x, int /*part*/) {
  return DotPair(acc, pairs, x);
}

// The finite values as DotPair multiplies them.
FOLIO_INLINE Vec RoundToPairs(Vec x) {
  const BitReg bits = (BitReg)x.r[0];
  return {{(Reg)((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u)}};
}
#else
using Pair = FloatPair;
constexpr Pair kPairOfOnes = {1.0f, 1.0f};

FOLIO_INLINE void PackPairs(const float* x, int64_t n, Pair* out) {
  std::memcpy(out, x, n * sizeof(float));
}

FOLIO_INLINE Vec DotPair(Vec acc, BitVec pairs, Pair x) {
  return Fma(HighBf16(pairs), x.second, Fma(LowBf16(pairs), x.first, acc));
}

constexpr int kPairParts = 2;
FOLIO_INLINE Vec LoadPairPart(const std::byte* line, int part) {
  const BitVec pairs = LoadBits(line);
  return part == 0 ? LowBf16(pairs) : HighBf16(pairs);
}
FOLIO_INLINE Vec AddPairPart(Vec acc, Vec weights, FloatPair x, int part) {
  return Fma(weights, part == 0 ? x.first : x.second, acc);
}

FOLIO_INLINE Vec RoundToPairs(Vec x) { return x; }
#endif

template <int kDistance, int... kLane>
FOLIO_INLINE Reg SwapLanes(Reg v, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(v, v, (kLane ^ kDistance)...);
}

template <int kDistance, typename Op>
FOLIO_INLINE Reg ReduceReg(Reg v, Op op) {
  if constexpr (kDistance == 0) {
    return v;
  } else {
    v = op(v, SwapLanes<kDistance>(v, std::make_integer_sequence<int, kLanes>()));
    return ReduceReg<kDistance / 2>(v, op);
  }
}

// Halves, quarters, ...: a few steps instead of fifteen in a row.
template <typename Op>
FOLIO_INLINE float Reduce(Vec v, Op op) {
  Reg r = v.r[0];
#pragma GCC unroll 4
  for (int i = 1; i < kRegs; ++i) r = op(r, v.r[i]);
  return ReduceReg<kLanes / 2>(r, op)[0];
}
FOLIO_INLINE float HorizontalMax(Vec v) {
  return Reduce(v, [](Reg a, Reg b) { return a > b ? a : b; });
}
FOLIO_INLINE float HorizontalSum(Vec v) {
  return Reduce(v, [](Reg a, Reg b) { return a + b; });
}

// Lane l: of a where bit kBit of l is clear, of b elsewhere; and the same of the lanes that differ
// from l in that bit.
template <int kBit, int... kLane>
FOLIO_INLINE std::pair<Reg, Reg> SplitLanes(Reg a, Reg b, std::integer_sequence<int, kLane...>) {
  return {__builtin_shufflevector(a, b, (kLane & kBit ? kLane + kLanes : kLane)...),
          __builtin_shufflevector(a, b, (kLane & kBit ? kLane - kBit + kLanes : kLane + kBit)...)};
}
template <int kRows, int kRow, int kBit, typename Op>
FOLIO_INLINE Reg ReduceFrom(const float (*rows)[16], Op op) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  if constexpr (kBit == kLanes) {
    return LoadReg<Reg>(rows[kRow]);
  } else if constexpr (kRow + kBit >= kRows) {
    const Reg only = ReduceFrom<kRows, kRow, 2 * kBit>(rows, op);
    return op(only, SwapLanes<kBit>(only, kAll));
  } else {
    const auto [own, other] =
        SplitLanes<kBit>(ReduceFrom<kRows, kRow, 2 * kBit>(rows, op),
                         ReduceFrom<kRows, kRow + kBit, 2 * kBit>(rows, op), kAll);
    return op(own, other);
  }
}
// Lane r: op over row r of kRows, in the order of Reduce. `op` is commutative.
template <int kRows, typename Op>
FOLIO_INLINE Vec ReduceRows(const float (&rows)[16][16], Op op) {
  if constexpr (kRegs == 1) {
    return {{ReduceFrom<kRows, 0, 1>(rows, op)}};
  } else {
    float out[16] = {};
    for (int r = 0; r < kRows; ++r) out[r] = Reduce(Load(rows[r]), op);
    return Load(out);
  }
}
template <int kRows>
FOLIO_INLINE Vec MaxOfRows(const float (&rows)[16][16]) {
  return ReduceRows<kRows>(rows, [](Reg a, Reg b) { return a > b ? a : b; });
}
template <int kRows>
FOLIO_INLINE Vec SumsOfRows(const float (&rows)[16][16]) {
  return ReduceRows<kRows>(rows, [](Reg a, Reg b) { return a + b; });
}

template <int kRows, int kFirst, typename F, int... kLane>
FOLIO_INLINE Reg RegOfRows(F f, std::integer_sequence<int, kLane...>) {
  return Reg{(kFirst + kLane < kRows ? f(kFirst + kLane) : 0.0f)...};
}
// Lane r: f(r) of row r of kRows. In registers: to load a vector of numbers that were stored one by
// one waits until they are in the cache.
template <int kRows, typename F>
FOLIO_INLINE Vec VecOfRows(F f) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Vec v;
  v.r[0] = RegOfRows<kRows, 0>(f, kAll);
  if constexpr (kRegs > 1) v.r[1] = RegOfRows<kRows, kLanes>(f, kAll);
  if constexpr (kRegs > 2) {
    v.r[2] = RegOfRows<kRows, 2 * kLanes>(f, kAll);
    v.r[3] = RegOfRows<kRows, 3 * kLanes>(f, kAll);
  }
  return v;
}

template <int... kLane>
FOLIO_INLINE IntReg LaneNumbers(std::integer_sequence<int, kLane...>) {
  return IntReg{kLane...};
}

// v where first + lane is in [lo, hi), minus infinity elsewhere.
FOLIO_INLINE Vec MaskOutside(Vec v, int first, int lo, int hi) {
  const Reg minus_infinity = SplatReg(-std::numeric_limits<float>::infinity());
  return ForRegs<Vec>([&](int i) {
    const IntReg token =
        LaneNumbers(std::make_integer_sequence<int, kLanes>()) + (first + i * kLanes);
    return ((token >= lo) & (token < hi)) ? v.r[i] : minus_infinity;
  });
}

// v + (offset + slope * token) where lane 0 is token `first`.
FOLIO_INLINE Vec AddRamp(Vec v, int first, float offset, float slope) {
  return ForRegs<Vec>([&](int i) {
    const IntReg token =
        LaneNumbers(std::make_integer_sequence<int, kLanes>()) + (first + i * kLanes);
    return v.r[i] + (SplatReg(offset) + SplatReg(slope) * __builtin_convertvector(token, Reg));
  });
}

// One bit for each of the first kLanes elements that is above the threshold.
FOLIO_INLINE uint32_t LanesAboveReg(Reg v, Reg threshold) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)threshold, _CMP_GT_OQ);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)(v > threshold)));
#elif defined(__SSE__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)(v > threshold)));
#else
  const IntReg above = v > threshold;
  uint32_t mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= (above[lane] & 1u) << lane;
  return mask;
#endif
}
FOLIO_INLINE uint32_t LanesAbove(Vec v, float threshold) {
  uint32_t mask = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kRegs; ++i) {
    mask |= LanesAboveReg(v.r[i], SplatReg(threshold)) << (i * kLanes);
  }
  return mask;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
