#include "engine/base/for_all.h"

#include <algorithm>
#include <memory>

#include "engine/base/catch_errors.h"
#include "engine/base/mutex.h"

namespace folio {
namespace {

// Outlives the call: a task may come to it when all is done.
class Shared {
 public:
  Shared(int count, absl::FunctionRef<absl::Status(int)> work) : count_(count), work_(work) {}

  void Help() {
    for (int n = Take(); n >= 0; n = Take()) {
      End(StatusOf([&] { return work_(n); }));
    }
  }

  absl::Status Await() FOLIO_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (num_busy_ > 0) idle_.Wait(&mutex_);
    return status_;
  }

 private:
  // -1: none is left.
  int Take() FOLIO_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (next_ >= count_) return -1;
    ++num_busy_;
    return next_++;
  }
  void End(const absl::Status& status) FOLIO_EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (!status.ok()) {
      if (status_.ok()) status_ = status;
      next_ = count_;
    }
    if (--num_busy_ == 0) idle_.NotifyAll();
  }

  const int count_;
  const absl::FunctionRef<absl::Status(int)> work_;
  Mutex mutex_;
  CondVar idle_;
  int next_ FOLIO_GUARDED_BY(mutex_) = 0;
  int num_busy_ FOLIO_GUARDED_BY(mutex_) = 0;
  absl::Status status_ FOLIO_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ForAll(int count, int num_helpers, TaskThreads* helpers,
                    absl::FunctionRef<absl::Status(int)> work) {
  const auto shared = std::make_shared<Shared>(count, work);
  TaskThreads::Tasks tasks;
  for (int n = 0; n < std::min(num_helpers, count - 1); ++n) {
    tasks.emplace_back([shared] { shared->Help(); });
  }
  helpers->Post(&tasks);
  shared->Help();
  return shared->Await();
}

}  // namespace folio
