// A device that has no room, gives nonsense or hangs when a test says so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/runtime/engine.h"
#include "tests/engine/failing_backend.h"

namespace folio::testing {

// What is wrong with it. Set from any thread.
struct DeviceFaults {
  std::atomic<bool> lost{false};
  std::atomic<bool> full{false};
  std::atomic<bool> not_finite{false};

  // The next step does not end until Release.
  void Hang() { hangs_ = true; }
  void Release() {
    std::lock_guard<std::mutex> lock(mu_);
    hangs_ = false;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return !hangs_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::atomic<bool> hangs_{false};
};

class FaultyBackend final : public test::FailingBackend {
 public:
  FaultyBackend(std::unique_ptr<Backend> real, DeviceFaults* faults)
      : FailingBackend(std::move(real), &faults->lost), faults_(faults) {}

  absl::Status Reserve(const SequenceSlice& slice, bool first) override {
    if (faults_->full) return absl::ResourceExhaustedError("the device has no room for this one");
    return FailingBackend::Reserve(slice, first);
  }
  void FinishStep(std::vector<Sample>* samples) override {
    faults_->Pass();
    FailingBackend::FinishStep(samples);
  }
  void TakeLogitRows(const StepBatch& batch, const float* x, int width, float* out) override {
    FailingBackend::TakeLogitRows(batch, x, width, out);
    if (faults_->not_finite) out[0] = std::numeric_limits<float>::quiet_NaN();
  }

 private:
  DeviceFaults* const faults_;
};

// Options of an engine on such a device.
inline EngineOptions OnFaultyDevice(EngineOptions options, DeviceFaults* faults) {
  options.device = "cuda";
  options.make_cuda = [faults]() -> absl::StatusOr<std::unique_ptr<Backend>> {
    auto cpu = CreateCpuBackend({});
    if (!cpu.ok()) return cpu.status();
    return std::make_unique<FaultyBackend>(*std::move(cpu), faults);
  };
  return options;
}

}  // namespace folio::testing
