#include "engine/base/checksum.h"

#include "engine/base/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace folio {

uint64_t Checksum(std::span<const std::byte> bytes, uint64_t seed) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return ChecksumAvx2(bytes, seed);
#endif
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::array<uint64_t, 2> Checksum128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace folio
