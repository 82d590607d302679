// Ctrl-C as a cancellation.
#pragma once

#include <pthread.h>

#include "client/cancel_token.h"

namespace folio::cli {

// While it lives, the first SIGINT or SIGTERM cancels token(), a second one ends the process with
// 130. The signals are taken on a thread of its own, so that nothing runs in a signal handler. Make
// one, in main(), before any other thread: they inherit its signal mask.
class InterruptWatcher {
 public:
  InterruptWatcher();
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

  client::CancelToken token() const { return source_.get_token(); }

 private:
  static void* Watch(void* self);

  client::CancelSource source_;
  pthread_t thread_;
};

}  // namespace folio::cli
