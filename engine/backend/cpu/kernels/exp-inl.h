// Powers of e and of two, and logarithms, of vectors.
#pragma once

#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

// e^x with a relative error below 3e-7 for x <= 88; 0 for x < -87. Range reduction to |r| <=
// ln(2)/2 and the Taylor series to r^7, whose remainder is below 6e-9.
FOLIO_INLINE Reg ExpReg(Reg x) {
  const Reg rounding = SplatReg(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Reg lowest = SplatReg(-87.0f);
  const Reg clamped = x > lowest ? x : lowest;
  const Reg shifted = Fma(clamped, SplatReg(1.44269504f), rounding);
  const Reg n = shifted - rounding;
  // ln 2 in two parts, the first short enough for an exact product.
  Reg r = Fma(n, SplatReg(-0.693359375f), clamped);
  r = Fma(n, SplatReg(2.12194440e-4f), r);
  Reg p = SplatReg(1.0f / 5040);
  p = Fma(p, r, SplatReg(1.0f / 720));
  p = Fma(p, r, SplatReg(1.0f / 120));
  p = Fma(p, r, SplatReg(1.0f / 24));
  p = Fma(p, r, SplatReg(1.0f / 6));
  p = Fma(p, r, SplatReg(0.5f));
  p = Fma(p, r, SplatReg(1.0f));
  p = Fma(p, r, SplatReg(1.0f));
  const BitReg power = ((BitReg)shifted - 0x4b400000u + 127u) << 23;
  const Reg result = p * (Reg)power;
  return x < lowest ? Reg{} : result;
}
FOLIO_INLINE Vec Exp(Vec x) {
  return ForRegs<Vec>([&](int i) { return ExpReg(x.r[i]); });
}
FOLIO_INLINE float Exp(float x) { return ExpReg(SplatReg(x))[0]; }

// 2^x with a relative error below 3e-6; 0 of minus infinity. The polynomial is the one of degree 4
// whose largest relative error on [0, 1] is the least.
FOLIO_INLINE Reg PowerOfTwo(Reg x) {
#if defined(__AVX512DQ__)
  const Reg f = (Reg)_mm512_maskz_reduce_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEG_INF);
#else
  const Reg lowest = SplatReg(-126.0f);
  const Reg clamped = x < lowest ? lowest : x;
  const BitReg whole = (BitReg) __builtin_convertvector(clamped + 127.0f, IntReg);
  const Reg f = clamped - (__builtin_convertvector((IntReg)whole, Reg) - 127.0f);
#endif
  Reg p = SplatReg(0.0135341682f);
  p = Fma(p, f, SplatReg(0.0520114602f));
  p = Fma(p, f, SplatReg(0.241442757f));
  p = Fma(p, f, SplatReg(0.693003834f));
  p = Fma(p, f, SplatReg(1.00000259f));
#if defined(__AVX512DQ__)
  return (Reg)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)x);
#else
  return x < lowest ? Reg{} : p * (Reg)(whole << 23);
#endif
}
FOLIO_INLINE Vec PowerOfTwo(Vec x) {
  return ForRegs<Vec>([&](int i) { return PowerOfTwo(x.r[i]); });
}

// log2(x) within 3e-6, for positive normal x; what is not finite is infinite. The polynomial is
// that of x - 1 times one of degree 5 whose largest error on [sqrt(1/2), sqrt(2)] is the least.
FOLIO_INLINE Reg Log2(Reg x) {
  const IntReg whole = ((IntReg)x - 0x3f3504f3) >> 23;  // of x / sqrt(1/2)
  const Reg f = (Reg)((IntReg)x - (whole << 23)) - 1.0f;
  Reg p = SplatReg(-0.206591636f);
  p = Fma(p, f, SplatReg(0.32215476f));
  p = Fma(p, f, SplatReg(-0.367489994f));
  p = Fma(p, f, SplatReg(0.479348034f));
  p = Fma(p, f, SplatReg(-0.721131861f));
  p = Fma(p, f, SplatReg(1.4427135f));
  const Reg log = Fma(p, f, __builtin_convertvector(whole, Reg));
  const Reg infinity = SplatReg(std::numeric_limits<float>::infinity());
  return x < infinity ? log : infinity;
}
FOLIO_INLINE Vec Log2(Vec x) {
  return ForRegs<Vec>([&](int i) { return Log2(x.r[i]); });
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
