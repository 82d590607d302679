// Vectors of 16 integers and sums of products of bytes, for each instruction set. Four weights of
// each of 16 outputs are one BitVec; they meet four inputs, which are signed bytes in [-127, 127]
// in one word. All sums are exact.
#pragma once

#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// Rows that stay in registers, and those of them for which a pass over a weight panel can take all
// 32 outputs.
#if defined(__AVX512F__)
constexpr int kIntegerRows = 8;
constexpr int kWideIntegerRows = 8;
#elif defined(__AVX2__)
constexpr int kIntegerRows = 4;
constexpr int kWideIntegerRows = 2;
#else
constexpr int kIntegerRows = 2;
constexpr int kWideIntegerRows = 0;
#endif

struct IntVec {
  IntReg r[kRegs];
};

FOLIO_INLINE IntVec SplatInt(int32_t x) {
  return ForRegs<IntVec>([&](int) { return x - IntReg{}; });
}
FOLIO_INLINE IntVec LoadInts(const int32_t* p) {
  return ForRegs<IntVec>([&](int i) { return LoadReg<IntReg>(p + i * kLanes); });
}
FOLIO_INLINE IntVec operator+(IntVec a, IntVec b) {
  return ForRegs<IntVec>([&](int i) { return a.r[i] + b.r[i]; });
}
FOLIO_INLINE IntVec operator*(IntVec a, int32_t b) {
  return ForRegs<IntVec>([&](int i) { return a.r[i] * b; });
}
FOLIO_INLINE IntVec Max(IntVec a, IntVec b) {
  return ForRegs<IntVec>([&](int i) { return a.r[i] > b.r[i] ? a.r[i] : b.r[i]; });
}
FOLIO_INLINE Vec ToFloat(IntVec v) {
  return ForRegs<Vec>([&](int i) { return __builtin_convertvector(v.r[i], Reg); });
}

FOLIO_INLINE IntVec BitsOf(Vec v) {
  return ForRegs<IntVec>([&](int i) { return (IntReg)v.r[i]; });
}
FOLIO_INLINE Vec FromBits(IntVec v) {
  return ForRegs<Vec>([&](int i) { return (Reg)v.r[i]; });
}

// Products of unsigned bytes u with the bytes of x, of each 16-bit lane two added: below 2^15 for
// u <= 128.
#if defined(__AVX512BW__)
FOLIO_INLINE IntReg MultiplyBytes(BitReg u, __m512i x) {
  return (IntReg)_mm512_maddubs_epi16((__m512i)u, x);
}
// Neighbours among the 16-bit lanes added.
FOLIO_INLINE IntReg AddNeighbours(IntReg v) {
  return (IntReg)_mm512_madd_epi16((__m512i)v, _mm512_set1_epi16(1));
}
FOLIO_INLINE IntReg AddLanes16(IntReg a, IntReg b) {
  return (IntReg)_mm512_add_epi16((__m512i)a, (__m512i)b);
}
FOLIO_INLINE __m512i SplatWord(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
#elif defined(__AVX2__)
FOLIO_INLINE IntReg MultiplyBytes(BitReg u, __m256i x) {
  return (IntReg)_mm256_maddubs_epi16((__m256i)u, x);
}
FOLIO_INLINE IntReg AddNeighbours(IntReg v) {
  return (IntReg)_mm256_madd_epi16((__m256i)v, _mm256_set1_epi16(1));
}
FOLIO_INLINE IntReg AddLanes16(IntReg a, IntReg b) {
  return (IntReg)_mm256_add_epi16((__m256i)a, (__m256i)b);
}
FOLIO_INLINE __m256i SplatWord(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
#else
// Byte `i` of each lane, sign-extended.
FOLIO_INLINE IntReg SignedByte(BitReg v, int i) { return (IntReg)(v << (24 - 8 * i)) >> 24; }
FOLIO_INLINE IntReg DotBytes(IntReg sums, BitReg w, uint32_t x) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sums += SignedByte(w, i) * static_cast<int8_t>(x >> (8 * i));
  return sums;
}
// Signed weights with inputs that are not negative.
FOLIO_INLINE IntReg DotSigned(IntReg sums, BitReg w, uint32_t x) { return DotBytes(sums, w, x); }
#endif

#if defined(__AVX512VNNI__)
FOLIO_INLINE IntReg DotBytes(IntReg sums, BitReg u, uint32_t x) {
  return (IntReg)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)u, SplatWord(x));
}
FOLIO_INLINE IntReg DotSigned(IntReg sums, BitReg w, uint32_t x) {
  return (IntReg)_mm512_dpbusd_epi32((__m512i)sums, SplatWord(x), (__m512i)w);
}
#elif defined(__AVX2__)
FOLIO_INLINE IntReg DotBytes(IntReg sums, BitReg u, uint32_t x) {
  return sums + AddNeighbours(MultiplyBytes(u, SplatWord(x)));
}
FOLIO_INLINE IntReg DotSigned(IntReg sums, BitReg w, uint32_t x) {
  return sums + AddNeighbours(MultiplyBytes((BitReg)SplatWord(x), (decltype(SplatWord(x)))w));
}
#endif

// Sums over up to eight quads of unsigned weights below 16, and what was summed before.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
// 16-bit lanes: 8 * 2 * 15 * 127 < 2^15.
struct NibbleSums {
  IntVec pairs;
};
FOLIO_INLINE NibbleSums BeginNibbles(IntVec /*before*/) { return {}; }
FOLIO_INLINE NibbleSums AddNibbles(NibbleSums sums, BitVec u, uint32_t x) {
  return {ForRegs<IntVec>([&](int i) {
    IntReg pairs = AddLanes16(sums.pairs.r[i], MultiplyBytes(u.r[i], SplatWord(x)));
    // Or g++ adds products to each other first, and spills those of all rows meanwhile.
    asm("" : "+x"(pairs));
    return pairs;
  })};
}
FOLIO_INLINE IntVec EndNibbles(IntVec before, NibbleSums sums) {
  return ForRegs<IntVec>([&](int i) { return before.r[i] + AddNeighbours(sums.pairs.r[i]); });
}
#else
struct NibbleSums {
  IntVec sums;
};
FOLIO_INLINE NibbleSums BeginNibbles(IntVec before) { return {before}; }
FOLIO_INLINE NibbleSums AddNibbles(NibbleSums sums, BitVec u, uint32_t x) {
  return {ForRegs<IntVec>([&](int i) { return DotBytes(sums.sums.r[i], u.r[i], x); })};
}
FOLIO_INLINE IntVec EndNibbles(IntVec /*before*/, NibbleSums sums) { return sums.sums; }
#endif

// Signed weights as the instruction set multiplies them; kBias was added to each.
#if defined(__AVX512VNNI__)
struct SignedQuads {
  static constexpr int kBias = 128;
  BitVec bytes;
  FOLIO_INLINE explicit SignedQuads(BitVec w)
      : bytes(ForRegs<BitVec>([&](int i) { return w.r[i] ^ 0x80808080u; })) {}
  FOLIO_INLINE IntReg Add(IntReg sums, int i, uint32_t x) const {
    return DotBytes(sums, bytes.r[i], x);
  }
};
#elif defined(__AVX512BW__)
// The signs of the weights go to the inputs.
struct SignedQuads {
  static constexpr int kBias = 0;
  BitVec magnitudes;
  __mmask64 negative;
  FOLIO_INLINE explicit SignedQuads(BitVec w)
      : magnitudes{{(BitReg)_mm512_abs_epi8((__m512i)w.r[0])}},
        negative(_mm512_movepi8_mask((__m512i)w.r[0])) {}
  FOLIO_INLINE IntReg Add(IntReg sums, int i, uint32_t x) const {
    const __m512i inputs = SplatWord(x);
    const __m512i with_signs =
        _mm512_mask_sub_epi8(inputs, negative, _mm512_setzero_si512(), inputs);
    return sums + AddNeighbours(MultiplyBytes(magnitudes.r[i], with_signs));
  }
};
#elif defined(__AVX2__)
struct SignedQuads {
  static constexpr int kBias = 0;
  BitVec magnitudes;
  BitVec signs;
  FOLIO_INLINE explicit SignedQuads(BitVec w)
      : magnitudes(
            ForRegs<BitVec>([&](int i) { return (BitReg)_mm256_abs_epi8((__m256i)w.r[i]); })),
        signs(w) {}
  FOLIO_INLINE IntReg Add(IntReg sums, int i, uint32_t x) const {
    const __m256i with_signs = _mm256_sign_epi8(SplatWord(x), (__m256i)signs.r[i]);
    return sums + AddNeighbours(MultiplyBytes(magnitudes.r[i], with_signs));
  }
};
#else
struct SignedQuads {
  static constexpr int kBias = 0;
  BitVec bytes;
  FOLIO_INLINE explicit SignedQuads(BitVec w) : bytes(w) {}
  FOLIO_INLINE IntReg Add(IntReg sums, int i, uint32_t x) const {
    return DotBytes(sums, bytes.r[i], x);
  }
};
#endif

// Integers in [-128, 127] as bytes, four in a word. out [4]
FOLIO_INLINE void StoreBytes(IntVec v, uint32_t* out) {
#if defined(__AVX512F__)
  _mm512_mask_cvtepi32_storeu_epi8(out, 0xffff, (__m512i)v.r[0]);
#else
  int32_t integers[16];
  std::memcpy(integers, &v, sizeof(integers));
  for (int quad = 0; quad < 4; ++quad) {
    const int32_t* q = integers + 4 * quad;
    out[quad] = (q[0] & 0xffu) | (q[1] & 0xffu) << 8 | (q[2] & 0xffu) << 16 | (q[3] & 0xffu) << 24;
  }
#endif
}

// To nearest, ties to even, of what fits into 8 bits; of anything else some integer that does.
FOLIO_INLINE IntVec Rounded(Vec v) {
  return ForRegs<IntVec>([&](int i) {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const Reg shifted = v.r[i] + SplatReg(12582912.0f);
    return (IntReg)((BitReg)shifted << 24) >> 24;
  });
}

// 64 numbers in [-127.5, 127.5] as bytes: to nearest, ties to even. Anything else is some byte.
#if defined(__AVX512BW__)
FOLIO_INLINE BitVec RoundedBytes(const Vec (&v)[4]) {
  __m512i r[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) r[i] = _mm512_maskz_cvtps_epi32(0xffff, (__m512)v[i].r[0]);
  // Of each four lanes the first quad, then each second one: words of the four in turns.
  const __m512i in_turns =
      _mm512_packs_epi16(_mm512_packs_epi32(r[0], r[1]), _mm512_packs_epi32(r[2], r[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {{(BitReg)_mm512_maskz_permutexvar_epi32(0xffff, order, in_turns)}};
}
#elif defined(__AVX2__)
FOLIO_INLINE BitVec RoundedBytes(const Vec (&v)[4]) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return ForRegs<BitVec>([&](int half) {
    __m256i r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) r[i] = _mm256_cvtps_epi32((__m256)v[2 * half + i / 2].r[i % 2]);
    const __m256i in_turns =
        _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
    return (BitReg)_mm256_permutevar8x32_epi32(in_turns, order);
  });
}
#else
FOLIO_INLINE BitVec RoundedBytes(const Vec (&v)[4]) {
  uint32_t quads[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) StoreBytes(Rounded(v[i]), quads + 4 * i);
  return LoadBits(reinterpret_cast<const std::byte*>(quads));
}
#endif

// Of each quad of signed bytes.
FOLIO_INLINE IntVec SumsOfBytes(BitVec bytes) {
  return ForRegs<IntVec>([&](int i) { return DotSigned(IntReg{}, bytes.r[i], 0x01010101u); });
}

FOLIO_INLINE int32_t SumOfLanes(IntVec v) {
  int32_t integers[16];
  std::memcpy(integers, &v, sizeof(integers));
  int32_t sum = 0;
  for (const int32_t integer : integers) sum += integer;
  return sum;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
