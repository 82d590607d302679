#include "engine/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <limits>

namespace folio {
namespace {

constexpr int kWordBits = std::numeric_limits<unsigned long>::digits;
// The kernel wants room for all nodes that it is built for: at most 1,024.
constexpr int kMaxNodes = 1024;

}  // namespace

std::vector<unsigned long> UsableNumaNodes() {
  std::vector<unsigned long> nodes(kMaxNodes / kWordBits);
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMaxNodes, nullptr, MPOL_F_MEMS_ALLOWED) !=
      0) {
    return {};
  }
  return nodes;
}

bool InterleavePages(std::byte* memory, int64_t num_bytes,
                     const std::vector<unsigned long>& nodes) {
  // One more than there are bits: the kernel takes one off.
  const auto num_bits = static_cast<unsigned long>(nodes.size()) * kWordBits + 1;
  return syscall(SYS_mbind, memory, static_cast<unsigned long>(num_bytes), MPOL_INTERLEAVE,
                 nodes.data(), num_bits, 0) == 0;
}

void InterleaveOverNodes(std::byte* memory, int64_t num_bytes) {
  static const std::vector<unsigned long> nodes = UsableNumaNodes();
  int count = 0;
  for (const unsigned long word : nodes) count += std::popcount(word);
  if (count > 1) InterleavePages(memory, num_bytes, nodes);
}

}  // namespace folio
