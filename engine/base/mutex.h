#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// What a mutex guards, for clang's -Wthread-safety (./dev lint); other compilers see nothing.
#if defined(__clang__)
#define FOLIO_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define FOLIO_THREAD_SAFETY(attribute)
#endif
// Of data: read and written only while the mutex is held.
#define FOLIO_GUARDED_BY(mutex) FOLIO_THREAD_SAFETY(guarded_by(mutex))
// Of a function: called only while the mutex is held, or only while it is not.
#define FOLIO_REQUIRES(...) FOLIO_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define FOLIO_EXCLUDES(...) FOLIO_THREAD_SAFETY(locks_excluded(__VA_ARGS__))

namespace folio {

// std::mutex with the annotations that the standard library's lacks. Not absl::Mutex: Debian builds
// that without instrumentation, and ThreadSanitizer then reports races that are none.
class FOLIO_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void Lock() FOLIO_THREAD_SAFETY(acquire_capability()) { mu_.lock(); }
  void Unlock() FOLIO_THREAD_SAFETY(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds a mutex for the life of a scope.
class FOLIO_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mu) FOLIO_THREAD_SAFETY(acquire_capability(mu)) : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() FOLIO_THREAD_SAFETY(release_capability()) { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable of a Mutex. Waits end now and then without a reason: wait in a loop over the
// condition.
class CondVar {
 public:
  void Wait(Mutex* mu) FOLIO_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // Returns false once `time` has come.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point time) FOLIO_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, time);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace folio
