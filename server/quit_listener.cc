#include "server/quit_listener.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

#include "engine/base/catch_errors.h"

namespace folio::server {

QuitListener::QuitListener(std::function<void()> answer)
    : thread_([this, answer = std::move(answer)] {
        pthread_setname_np(pthread_self(), "sigquit");
        sigset_t signals;
        sigemptyset(&signals);
        sigaddset(&signals, SIGQUIT);
        int signal = 0;
        while (sigwait(&signals, &signal) == 0 && !ending_.load()) {
          CatchErrors(answer).IgnoreError();  // without memory there is no answer
        }
      }) {}

QuitListener::~QuitListener() {
  ending_.store(true);
  pthread_kill(thread_.native_handle(), SIGQUIT);
  thread_.join();
}

}  // namespace folio::server
