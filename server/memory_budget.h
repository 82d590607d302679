#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace folio::server {

// Bytes that all requests together may hold outside the engine: messages as gRPC has parsed them,
// and the tokens made of them. Taken before they are needed, so that a refusal costs nothing.
// Thread-safe; outlives its shares.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t limit) : limit_(limit) {}
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
      budget_->used_.fetch_sub(bytes_ - bytes, std::memory_order_relaxed);
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
    num_taken_.fetch_add(1, std::memory_order_relaxed);
    if (!TakeBytes(bytes)) return std::nullopt;
    return Share(this, bytes);
  }

  int64_t limit() const { return limit_; }
  // Shares that were asked for so far.
  int64_t num_taken() const { return num_taken_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  bool TakeBytes(int64_t bytes) {
    if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= limit_) return true;
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }

  const int64_t limit_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> num_taken_{0};
};

}  // namespace folio::server
