#include "server/prompt_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <utility>

#include "engine/base/catch_errors.h"

namespace folio::server {
namespace {

// Of the thread for long work (setpriority): where processors are short, steps and short calls go
// first. Text becomes tokens much faster than tokens become KV.
constexpr int kNiceOfLongWork = 10;

void Run(const PromptPool::Task& task) {
  const absl::Status run = CatchErrors(task.run);
  if (!run.ok()) task.fail(run);
}

}  // namespace

PromptPool::PromptPool() : PromptPool(Begun()) {
  for (const Lane lane : {Lane::kShort, Lane::kLong}) {
    threads_.emplace_back([this, lane] { Main(lane); });
  }
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

void PromptPool::Post(Lane lane, const std::string& client, Task task) {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    queue(lane).Push(client, std::move(task));
    ++num_waiting_;
  }
  wake_.NotifyAll();
}

PromptPool::Progress PromptPool::progress() const {
  MutexLock lock(&mu_);
  return {num_finished_, num_running_ > 0, num_waiting_, last_finished_};
}

PromptPool::Queue* PromptPool::NextQueue(Lane lane) {
  if (lane == Lane::kLong && !queue(Lane::kLong).empty()) return &queue(Lane::kLong);
  return queue(Lane::kShort).empty() ? nullptr : &queue(Lane::kShort);
}

void PromptPool::Main(Lane lane) {
  pthread_setname_np(pthread_self(), lane == Lane::kShort ? "prompts" : "long prompts");
  // 0: this thread. Where that is not allowed it works as well.
  if (lane == Lane::kLong) (void)::setpriority(PRIO_PROCESS, 0, kNiceOfLongWork);
  for (;;) {
    Task task;
    {
      MutexLock lock(&mu_);
      Queue* next = NextQueue(lane);
      for (; !stopping_ && next == nullptr; next = NextQueue(lane)) wake_.Wait(&mu_);
      if (next == nullptr) return;
      task = next->Pop();
      --num_waiting_;
      ++num_running_;
    }
    Run(task);
    task = {};
    MutexLock lock(&mu_);
    --num_running_;
    ++num_finished_;
    last_finished_ = std::chrono::steady_clock::now();
  }
}

}  // namespace folio::server
