#include "engine/tools/machine_meter.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "engine/backend/cpu/kernels/kernels.h"

namespace folio {
namespace {

constexpr int64_t kReadTasks = 64;
constexpr int64_t kMultiplyAddSteps = 500'000;
constexpr int64_t kMultiplyTilesSteps = 100'000;

double Seconds(WorkerPool* pool, int64_t tasks, const std::function<void(int64_t, int)>& body) {
  const auto start = std::chrono::steady_clock::now();
  pool->ParallelFor(tasks, body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

MachineMeter::MachineMeter(int num_threads)
    : kernels_(cpu::KernelsFor(BestIsa())), pool_(num_threads) {
  void* memory =
      mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "no memory for a buffer of %ld bytes\n", long(kBufferBytes));
    std::exit(1);
  }
  // Like the weights, whose reading it is compared with.
  madvise(memory, kBufferBytes, MADV_HUGEPAGE);
  std::memset(memory, 1, kBufferBytes);
  buffer_ = static_cast<const std::byte*>(memory);
}

MachineMeter::~MachineMeter() { munmap(const_cast<std::byte*>(buffer_), kBufferBytes); }

double MachineMeter::ReadBytesPerSecond() {
  constexpr int64_t kTaskBytes = kBufferBytes / kReadTasks;
  return kBufferBytes / Seconds(&pool_, kReadTasks, [&](int64_t task, int) {
           sink_ = static_cast<float>(kernels_.read_bytes(buffer_ + task * kTaskBytes, kTaskBytes));
         });
}

double MachineMeter::Fp32FlopsPerSecond() {
  const int64_t tasks = 16 * pool_.num_threads();
  const double seconds = Seconds(
      &pool_, tasks, [&](int64_t, int) { sink_ = kernels_.multiply_add(kMultiplyAddSteps, 0.5f); });
  return static_cast<double>(tasks * kMultiplyAddSteps * kernels_.multiply_add_flops) / seconds;
}

double MachineMeter::MatrixUnitFlopsPerSecond() {
  if (kernels_.multiply_tiles == nullptr) return 0;
  const int64_t tasks = 16 * pool_.num_threads();
  const double seconds =
      Seconds(&pool_, tasks, [&](int64_t, int) { kernels_.multiply_tiles(kMultiplyTilesSteps); });
  return static_cast<double>(tasks * kMultiplyTilesSteps * kernels_.multiply_tiles_flops) / seconds;
}

}  // namespace folio
