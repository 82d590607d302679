// Vectors of 16 floats, whatever the registers are: GCC and clang split them as the target needs.
// Everything that depends on the instruction set is in this file.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/base/half.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

using Vec = float __attribute__((vector_size(64)));
using IntVec = int32_t __attribute__((vector_size(64)));
using BitVec = uint32_t __attribute__((vector_size(64)));

// Rows per pass over a weight panel: two accumulators each must stay in registers.
#if defined(__AVX512F__)
constexpr int kMatMulRows = 12;
#else
constexpr int kMatMulRows = 3;
#endif

#if defined(__AVX512BF16__)
constexpr bool kNativeBf16 = true;
#else
constexpr bool kNativeBf16 = false;
#endif

inline Vec Splat(float x) { return x - Vec{}; }

inline Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

inline BitVec LoadBits(const void* p) {
  BitVec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// The two halves of 16 bf16 pairs, as fp32: the first of each pair lies in the low bits.
inline Vec LowBf16(BitVec pairs) { return (Vec)(pairs << 16); }
inline Vec HighBf16(BitVec pairs) { return (Vec)(pairs & 0xffff0000u); }

// 16 consecutive fp16 values.
inline Vec LoadFp16(const uint16_t* p) {
#if defined(__AVX512F__)
  // The masked form: g++ 12 takes the plain one for a use of an uninitialised register.
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  Vec v;
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  const __m256 low = _mm256_cvtph_ps(_mm_loadu_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm_loadu_si128(halves + 1));
  std::memcpy(&v, &low, 32);
  std::memcpy(reinterpret_cast<char*>(&v) + 32, &high, 32);
  return v;
#else
  Vec v;
  for (int i = 0; i < 16; ++i) v[i] = Fp16ToFloat(p[i]);
  return v;
#endif
}

// Two fp32 values as one bf16 pair.
inline uint32_t Bf16Pair(float first, float second) {
  return uint32_t{FloatToBf16(first)} | uint32_t{FloatToBf16(second)} << 16;
}

// acc + first of each pair * first of x + second * second, x as packed by PackPair. Native: both operands
// bf16, fp32 accumulation. Otherwise x stays fp32, so this is the more exact of the two.
struct PairOperand {
  float first;
  float second;
};

inline Vec DotPair(Vec acc, BitVec pairs, PairOperand x) {
#if defined(__AVX512BF16__)
  uint32_t bits;
  std::memcpy(&bits, &x.first, sizeof(bits));
  return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(bits));
#else
  acc = acc + LowBf16(pairs) * x.first;
  return acc + HighBf16(pairs) * x.second;
#endif
}

// The operand of DotPair: in the native case `first` holds the bits of the bf16 pair.
inline PairOperand PackPair(float first, float second) {
  if (!kNativeBf16) return {first, second};
  const uint32_t bits = Bf16Pair(first, second);
  PairOperand x{0, 0};
  std::memcpy(&x.first, &bits, sizeof(bits));
  return x;
}

inline Vec Max(Vec a, Vec b) { return a > b ? a : b; }

inline float HorizontalMax(Vec v) {
  float max = v[0];
  for (int i = 1; i < 16; ++i) max = v[i] > max ? v[i] : max;
  return max;
}

inline float HorizontalSum(Vec v) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += v[i];
  return sum;
}

// e^x with a relative error below 3e-7 for x <= 88; 0 for x < -87. Range reduction to |r| <= ln(2)/2 and the
// Taylor series to r^7, whose remainder is below 6e-9.
inline Vec Exp(Vec x) {
  const Vec rounding = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = Max(x, Splat(-87.0f));
  const Vec shifted = clamped * 1.44269504f + rounding;
  const Vec n = shifted - rounding;
  const Vec r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  Vec p = Splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const BitVec power = ((BitVec)shifted - 0x4b400000u + 127u) << 23;
  const Vec result = p * (Vec)power;
  return x < Splat(-87.0f) ? Vec{} : result;
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
