#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/worker_pool.h"

namespace folio {

namespace cpu {
struct Kernels;
}

// What this machine can do at best with a number of threads, so that a speed can be shown as a
// share of it. Memory bandwidth of shared machines drifts within minutes: measure right before and
// after what it is compared with.
class MachineMeter {
 public:
  static constexpr int64_t kBufferBytes = int64_t{1} << 29;

  explicit MachineMeter(int num_threads);
  ~MachineMeter();
  MachineMeter(const MachineMeter&) = delete;
  MachineMeter& operator=(const MachineMeter&) = delete;

  // Bytes per second of a plain read of a buffer much larger than the caches.
  double ReadBytesPerSecond();

  // fp32 multiply-adds on registers, two FLOPs each, with the widest vectors of this CPU.
  double Fp32FlopsPerSecond();

  // bf16 products of the matrix unit; 0 where there is none.
  double MatrixUnitFlopsPerSecond();

 private:
  const cpu::Kernels& kernels_;
  WorkerPool pool_;
  const std::byte* buffer_;
  volatile float sink_ = 0;
};

}  // namespace folio
