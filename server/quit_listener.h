#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace folio::server {

// Answers SIGQUIT, on a thread of its own, so that it does so whatever the others wait for; the
// process goes on. REQUIRES: SIGQUIT is blocked in all threads.
class QuitListener {
 public:
  explicit QuitListener(std::function<void()> answer);
  ~QuitListener();

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace folio::server
