#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace folio::server {

// Bytes that requests may hold outside the engine, those of all together or of one tenant: messages
// as gRPC has parsed them, and the tokens made of them. Taken before they are needed, so that a
// refusal costs nothing. Thread-safe; outlives its shares.
class MemoryBudget {
 public:
  // What is taken of it is taken of `whole`, too, which outlives it.
  explicit MemoryBudget(int64_t limit, MemoryBudget* whole = nullptr)
      : limit_(limit), whole_(whole) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // What one request has taken, given back at its end. Not thread-safe.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { ShrinkTo(0); }

    int64_t bytes() const { return bytes_; }
    // Takes what is missing to `bytes`; false when fewer are left. REQUIRES: made by Take.
    bool GrowTo(int64_t bytes) {
      if (bytes > bytes_ && !budget_->TakeBytes(bytes - bytes_)) return false;
      bytes_ = std::max(bytes, bytes_);
      return true;
    }
    // Gives back what is more than `bytes`.
    void ShrinkTo(int64_t bytes) {
      if (bytes >= bytes_) return;
      budget_->GiveBack(bytes_ - bytes);
      bytes_ = bytes;
    }

   private:
    friend class MemoryBudget;
    Share(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}

    MemoryBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  // nullopt when fewer bytes are left.
  std::optional<Share> Take(int64_t bytes) {
    for (MemoryBudget* one = this; one != nullptr; one = one->whole_) {
      one->num_taken_.fetch_add(1, std::memory_order_relaxed);
    }
    if (!TakeBytes(bytes)) return std::nullopt;
    return Share(this, bytes);
  }

  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // What is above it by now stays taken.
  void SetLimit(int64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  // Whether so much more would be within its own limit.
  bool HasRoom(int64_t bytes) const { return used() + bytes <= limit(); }
  // Shares that were asked for so far.
  int64_t num_taken() const { return num_taken_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  bool TakeBytes(int64_t bytes) {
    const int64_t used = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (used <= limit() && (whole_ == nullptr || whole_->TakeBytes(bytes))) return true;
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void GiveBack(int64_t bytes) {
    for (MemoryBudget* one = this; one != nullptr; one = one->whole_) {
      one->used_.fetch_sub(bytes, std::memory_order_relaxed);
    }
  }

  std::atomic<int64_t> limit_;
  MemoryBudget* const whole_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> num_taken_{0};
};

}  // namespace folio::server
