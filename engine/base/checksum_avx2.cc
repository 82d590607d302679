#include "engine/base/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace folio {

uint64_t ChecksumAvx2(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace folio
