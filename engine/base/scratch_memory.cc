#include "engine/base/scratch_memory.h"

#include <new>
#include <utility>

namespace folio {
namespace {

constexpr int64_t kLargePage = 2 << 20;

}  // namespace

std::byte* ScratchMemory::Grown(int64_t num_bytes) {
  if (num_bytes <= buffer_.num_bytes()) return buffer_.data();
  const int64_t whole_pages = (num_bytes + kLargePage - 1) / kLargePage * kLargePage;
  buffer_ = {};
  absl::StatusOr<Buffer> buffer = Buffer::Create(HostMemory(), whole_pages);
  if (!buffer.ok()) throw std::bad_alloc();
  buffer_ = *std::move(buffer);
  return buffer_.data();
}

}  // namespace folio
