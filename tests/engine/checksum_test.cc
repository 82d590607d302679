#include "engine/base/checksum.h"

#include <vector>

#include "engine/base/checksum_avx2.h"
#include "engine/base/splitmix.h"
#include "gtest/gtest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace folio::test {
namespace {

// Files that are on disk were written with it.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(Checksum({}), 0x2d06800538d394c2u);  // as its authors have it
}

TEST(Checksum, IsTheSameOnEveryProcessor) {
  std::vector<std::byte> bytes(70000);
  for (size_t n = 0; n < bytes.size(); ++n) bytes[n] = static_cast<std::byte>(SplitMix64(n));
  for (const size_t count : {1u, 16u, 100u, 240u, 241u, 1024u, 4096u, 16384u, 65537u, 70000u}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{7}}) {
      const std::span<const std::byte> part(bytes.data(), count);
      const uint64_t plain = XXH3_64bits_withSeed(part.data(), part.size(), seed);
      EXPECT_EQ(Checksum(part, seed), plain) << count;
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) {
        EXPECT_EQ(ChecksumAvx2(part, seed), plain) << count;
      }
#endif
    }
  }
}

}  // namespace
}  // namespace folio::test
