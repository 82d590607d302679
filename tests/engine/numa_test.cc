#include "engine/base/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace folio {
namespace {

// Of a machine with one node, too: the policy of the pages is what the system was told.
TEST(Numa, PagesAreInterleavedOverTheNodesThatThisProcessMayUse) {
  const std::vector<unsigned long> nodes = UsableNumaNodes();
  if (nodes.empty()) GTEST_SKIP() << "the system does not say what nodes there are";
  constexpr int64_t kBytes = 4 << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  if (!InterleavePages(static_cast<std::byte*>(memory), kBytes, nodes)) {
    const int error = errno;
    munmap(memory, kBytes);
    ASSERT_TRUE(error == EPERM || error == ENOSYS) << std::strerror(error);
    GTEST_SKIP() << "this process may set no policy";
  }
  int policy = -1;
  EXPECT_EQ(syscall(SYS_get_mempolicy, &policy, nullptr, 0, static_cast<char*>(memory) + kBytes / 2,
                    MPOL_F_ADDR),
            0);
  EXPECT_EQ(policy, MPOL_INTERLEAVE);
  std::memset(memory, 7, kBytes);
  EXPECT_EQ(static_cast<char*>(memory)[kBytes - 1], 7);
  munmap(memory, kBytes);
}

TEST(Numa, MemoryThatIsNotThereIsRefused) {
  const std::vector<unsigned long> nodes = UsableNumaNodes();
  if (nodes.empty()) GTEST_SKIP() << "the system does not say what nodes there are";
  const int64_t page = sysconf(_SC_PAGESIZE);
  void* const memory = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(memory, page);
  EXPECT_FALSE(InterleavePages(static_cast<std::byte*>(memory), page, nodes));
}

}  // namespace
}  // namespace folio
