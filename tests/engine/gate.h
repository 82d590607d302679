#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/types/request.h"

namespace folio::test {

// Stops the engine thread at the first event until it is released.
class Gate final : public EventSink {
 public:
  void OnEvent(Event) override {
    std::unique_lock<std::mutex> lock(mu_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void WaitUntilReached() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool reached_ = false;
  bool open_ = false;
};

}  // namespace folio::test
