#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace folio::server {

// Threads for what must not run in a gRPC reaction: tokenising, above all. Tasks start in the order
// they were posted. Thread-safe.
class PromptPool {
 public:
  explicit PromptPool(int num_threads);
  ~PromptPool();

  void Post(std::function<void()> task);
  // Runs what is queued, then joins; tasks posted later are dropped. Call from one thread.
  void Stop();

 private:
  void Main();

  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mu_
  bool stopping_ = false;                    // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace folio::server
