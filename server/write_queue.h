#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "engine/base/mutex.h"

namespace folio::server {

// The outgoing side of a stream reactor: messages in order, one write in flight, Finish exactly
// once after the last of them. Thread-safe. Owned by its reactor.
template <typename Message>
class WriteQueue {
 public:
  // How the reactor starts its operations, called with no two at once; and how a message is folded
  // into the last one that still waits, so that a slow reader costs little (false: it must stand
  // alone).
  struct Reactor {
    std::function<void(const Message*)> write;
    std::function<void(grpc::Status)> finish;
    bool (*merge)(const Message& from, Message* into) = nullptr;
  };

  explicit WriteQueue(Reactor reactor) : reactor_(std::move(reactor)) {}

  // Sends `message` after those before it. Returns whether it stands alone: false if it was folded
  // into another one, or dropped because the stream has ended.
  bool Push(Message message) {
    MutexLock lock(&mu_);
    if (final_.has_value()) return false;
    if (!writing_) {
      waiting_.push_back({std::move(message), 0});
      StartIfIdle();
      return true;
    }
    const size_t bytes = message.ByteSizeLong();
    waiting_bytes_ += bytes;
    // The front one is in flight and must not change.
    if (waiting_.size() > 1 && reactor_.merge(message, &waiting_.back().message)) {
      waiting_.back().bytes += bytes;
      return false;
    }
    waiting_.push_back({std::move(message), bytes});
    return true;
  }

  // Ends the stream with `status` once everything pushed before is written. Only the first end
  // counts.
  void Finish(grpc::Status status) { End(std::move(status), /*drop=*/false); }
  // Ends it without what still waits.
  void Abort(grpc::Status status) { End(std::move(status), /*drop=*/true); }

  // Calls `start` if the stream has not ended; an end waits for it. For the reactor's other
  // operations.
  template <typename Start>
  void IfOpen(Start start) {
    MutexLock lock(&mu_);
    if (!final_.has_value()) start();
  }

  // Reaction to a finished write; not ok: the client is gone and nothing more can be sent.
  void OnWriteDone(bool ok) {
    MutexLock lock(&mu_);
    writing_ = false;
    Pop();
    if (!ok) {
      while (!waiting_.empty()) Pop();
      if (!final_.has_value()) final_ = grpc::Status::CANCELLED;
    }
    StartIfIdle();
  }

  // Bytes behind the message in flight.
  size_t waiting_bytes() const {
    MutexLock lock(&mu_);
    return waiting_bytes_;
  }
  // The status that the stream has ended or will end with.
  std::optional<grpc::StatusCode> final_code() const {
    MutexLock lock(&mu_);
    if (!final_.has_value()) return std::nullopt;
    return final_->error_code();
  }

 private:
  struct Waiting {
    Message message;
    size_t bytes;  // counted in waiting_bytes_
  };

  void End(grpc::Status status, bool drop) {
    MutexLock lock(&mu_);
    if (final_.has_value()) return;
    final_ = std::move(status);
    while (drop && waiting_.size() > (writing_ ? 1u : 0u)) {
      waiting_bytes_ -= waiting_.back().bytes;
      waiting_.pop_back();
    }
    StartIfIdle();
  }

  void Pop() FOLIO_REQUIRES(mu_) {
    waiting_bytes_ -= waiting_.front().bytes;
    waiting_.pop_front();
  }

  // Holding the lock: gRPC runs reactions on its own threads, never inside these calls.
  void StartIfIdle() FOLIO_REQUIRES(mu_) {
    if (writing_ || finish_started_) return;
    if (!waiting_.empty()) {
      writing_ = true;
      waiting_bytes_ -= waiting_.front().bytes;
      waiting_.front().bytes = 0;
      reactor_.write(&waiting_.front().message);
    } else if (final_.has_value()) {
      finish_started_ = true;
      reactor_.finish(std::move(*final_));  // its code stays
    }
  }

  const Reactor reactor_;
  mutable Mutex mu_;
  std::deque<Waiting> waiting_ FOLIO_GUARDED_BY(mu_);  // the front one is in flight while writing_
  size_t waiting_bytes_ FOLIO_GUARDED_BY(mu_) = 0;
  bool writing_ FOLIO_GUARDED_BY(mu_) = false;
  bool finish_started_ FOLIO_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> final_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
