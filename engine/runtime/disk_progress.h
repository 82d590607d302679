#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

namespace folio {

// When something that is to be read from disk, or written, has last got on. One that waits for a
// thread gets on with those before it. Thread-safe.
class DiskProgress {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `before`: of those before it; null: it waits for nobody.
  explicit DiskProgress(std::shared_ptr<const DiskProgress> before = nullptr)
      : before_(std::move(before)), last_(std::chrono::steady_clock::now()) {}

  // A thread has begun with it; it has got on.
  void Begin() {
    Note();
    begun_ = true;
  }
  void Note() { last_ = std::chrono::steady_clock::now(); }

  Time last() const {
    if (begun_ || before_ == nullptr) return last_;
    return std::max<Time>(last_, before_->last());
  }

 private:
  const std::shared_ptr<const DiskProgress> before_;
  std::atomic<Time> last_;
  std::atomic<bool> begun_ = false;
};

using DiskProgressPtr = std::shared_ptr<DiskProgress>;

}  // namespace folio
