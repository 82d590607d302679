#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "engine/base/mutex.h"

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

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> tasks_ FOLIO_GUARDED_BY(mu_);
  bool stopping_ FOLIO_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace folio::server
