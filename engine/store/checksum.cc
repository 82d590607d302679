#include "engine/store/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace folio {

uint64_t Checksum(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::array<uint64_t, 2> Checksum128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace folio
