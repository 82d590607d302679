#include "engine/tools/make_model_random.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "engine/base/half.h"
#include "engine/base/splitmix.h"

namespace folio {
namespace {

constexpr size_t kTableSize = 1 << 16;

// The x with normal probability `p` below it, by Newton's method from `start`.
double NormalQuantile(double p, double start) {
  double x = start;
  for (int step = 0; step < 50; ++step) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    const double change = (below - p) / density;
    x -= change;
    if (std::abs(change) < 1e-12) break;
  }
  return x;
}

}  // namespace

RandomBits::RandomBits(uint64_t seed) {
  for (uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15u;
    word = SplitMix64(seed);
  }
}

uint64_t RandomBits::Next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

NormalTable::NormalTable(DType dtype, double standard_deviation) : dtype_(dtype) {
  const auto element_bytes = static_cast<size_t>(DTypeBytes(dtype));
  table_.resize(kTableSize * element_bytes);
  double quantile = 0;
  // From the middle outwards, each quantile starts from its neighbour; the lower half mirrors it.
  for (size_t i = kTableSize / 2; i < kTableSize; ++i) {
    quantile = NormalQuantile((static_cast<double>(i) + 0.5) / kTableSize, quantile);
    const auto value = static_cast<float>(quantile * standard_deviation);
    const std::string above = EncodeElement(value, dtype);
    const std::string below = EncodeElement(-value, dtype);
    std::memcpy(table_.data() + i * element_bytes, above.data(), element_bytes);
    std::memcpy(table_.data() + (kTableSize - 1 - i) * element_bytes, below.data(), element_bytes);
  }
}

template <typename T>
void NormalTable::FillAs(RandomBits* random, size_t num_elements, char* out) const {
  const T* table = reinterpret_cast<const T*>(table_.data());
  T* elements = reinterpret_cast<T*>(out);
  for (size_t i = 0; i < num_elements;) {
    uint64_t bits = random->Next();
    for (int part = 0; part < 4 && i < num_elements; ++part, bits >>= 16) {
      elements[i++] = table[bits & 0xffffu];
    }
  }
}

void NormalTable::Fill(RandomBits* random, size_t num_elements, char* out) const {
  if (DTypeBytes(dtype_) == 4) {
    FillAs<uint32_t>(random, num_elements, out);
  } else {
    FillAs<uint16_t>(random, num_elements, out);
  }
}

std::string EncodeElement(float value, DType dtype) {
  if (DTypeBytes(dtype) == 4) return std::string(reinterpret_cast<const char*>(&value), 4);
  const uint16_t bits = dtype == DType::kF16 ? FloatToFp16(value) : FloatToBf16(value);
  return std::string(reinterpret_cast<const char*>(&bits), 2);
}

}  // namespace folio
