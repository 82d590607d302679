#pragma once

#include <atomic>
#include <chrono>

#include "server/clock.h"

namespace folio::server {

// Whether the client of a stream reads what is written to it. Writes are noted on any thread, the
// rest is for the pump's.
class ReaderWatch {
 public:
  // A write that is not taken for so long is the last one.
  explicit ReaderWatch(std::chrono::seconds patience) : patience_(patience) {}

  void OnWriteStarted(SteadyTime now) { started_.store(now); }
  void OnWriteDone() { started_.store(SteadyTime{}); }

  // The buffers of the transport are full and stay so.
  bool Stalled(SteadyTime now) const { return Unread(now) > kStall; }

  // True once, when patience has ended: the stream is to be aborted.
  bool MustAbort(SteadyTime now) {
    if (aborted() || Unread(now) <= patience_) return false;
    aborted_ = now;
    return true;
  }
  bool aborted() const { return aborted_ != SteadyTime{}; }
  // The status of the abort is stuck behind a write that the client does not take either: the call
  // is to be cancelled.
  bool MustCancel(SteadyTime now) const { return aborted() && now - aborted_ > kAbortGrace; }

  std::chrono::seconds patience() const { return patience_; }

 private:
  static constexpr std::chrono::milliseconds kStall{250};
  static constexpr std::chrono::seconds kAbortGrace{10};

  SteadyTime::duration Unread(SteadyTime now) const {
    const SteadyTime started = started_.load();
    return started == SteadyTime{} ? SteadyTime::duration::zero() : now - started;
  }

  const std::chrono::seconds patience_;
  std::atomic<SteadyTime> started_{SteadyTime{}};  // epoch: no write in flight
  SteadyTime aborted_{};                           // epoch: not aborted
};

}  // namespace folio::server
