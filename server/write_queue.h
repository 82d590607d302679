#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace folio::server {

// The outgoing side of a stream reactor: messages in order, one write in flight, Finish exactly once after the
// last of them. Thread-safe. Owned by its reactor.
template <typename Message>
class WriteQueue {
 public:
  // `write` and `finish` start the reactor's operations; they are called with no two at once.
  WriteQueue(std::function<void(const Message*)> write, std::function<void(grpc::Status)> finish)
      : write_(std::move(write)), finish_(std::move(finish)) {}

  // Appends a message; `merge(&last)` may fold it into the last one that is still waiting instead (returns
  // whether it did), so that a slow reader costs little memory. Dropped after Finish.
  void Push(Message message, const std::function<bool(Message*)>& merge = nullptr) {
    std::unique_lock<std::mutex> lock(mu_);
    if (final_.has_value() || broken_) return;
    // The front one is in flight and must not change.
    const bool can_merge = waiting_.size() > (writing_ ? 1u : 0u);
    if (merge != nullptr && can_merge && merge(&waiting_.back())) return;
    waiting_.push_back(std::move(message));
    StartIfIdle();
  }

  // Ends the stream with `status` once everything pushed before is written. Later calls are ignored.
  void Finish(grpc::Status status) {
    std::unique_lock<std::mutex> lock(mu_);
    if (final_.has_value()) return;
    final_ = std::move(status);
    StartIfIdle();
  }

  // Reaction to a finished write.
  void OnWriteDone(bool ok) {
    std::unique_lock<std::mutex> lock(mu_);
    writing_ = false;
    waiting_.pop_front();
    if (!ok) {  // the client is gone: nothing more can be sent
      broken_ = true;
      waiting_.clear();
      if (!final_.has_value()) final_ = grpc::Status::CANCELLED;
    }
    StartIfIdle();
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mu_);
    return waiting_.size();
  }
  bool finished() const {
    std::lock_guard<std::mutex> lock(mu_);
    return final_.has_value();
  }

 private:
  // Holding the lock: gRPC runs reactions on its own threads, never inside these calls.
  void StartIfIdle() {
    if (writing_ || finish_started_) return;
    if (!waiting_.empty()) {
      writing_ = true;
      write_(&waiting_.front());
    } else if (final_.has_value()) {
      finish_started_ = true;
      finish_(*final_);
    }
  }

  const std::function<void(const Message*)> write_;
  const std::function<void(grpc::Status)> finish_;
  mutable std::mutex mu_;
  std::deque<Message> waiting_;        // the front one is in flight while writing_
  bool writing_ = false;
  bool broken_ = false;
  bool finish_started_ = false;
  std::optional<grpc::Status> final_;
};

}  // namespace folio::server
