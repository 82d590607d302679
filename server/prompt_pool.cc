#include "server/prompt_pool.h"

#include <pthread.h>

#include <utility>

namespace folio::server {

PromptPool::PromptPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Main(); });
}

PromptPool::~PromptPool() { Stop(); }

void PromptPool::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void PromptPool::Post(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

void PromptPool::Main() {
  pthread_setname_np(pthread_self(), "prompt pool");
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && tasks_.empty()) wake_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace folio::server
