// A sink that remembers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/types/request.h"
#include "gtest/gtest.h"

namespace folio::test {

// Thread-safe record of one request's events.
class Recorder final : public EventSink {
 public:
  void OnEvent(Event event) override {
    std::lock_guard<std::mutex> lock(mu_);
    EXPECT_FALSE(ended_) << "an event after the last one";
    if (auto* delta = std::get_if<DeltaEvent>(&event)) {
      tokens_ += static_cast<int>(delta->tokens.size());
      text_ += delta->text;
    }
    if (auto* queued = std::get_if<QueuedEvent>(&event)) positions_.push_back(queued->position);
    num_prefills_ += std::holds_alternative<PrefillEvent>(event) ? 1 : 0;
    if (auto* prompt = std::get_if<PromptEvent>(&event)) {
      EXPECT_EQ(tokens_, 0) << "a part of the prompt after the answer has begun";
      prompt_text_ += prompt->text;
      num_prompt_logprobs_ += static_cast<int>(prompt->logprobs.size());
    }
    if (auto* scored = std::get_if<ScoredEvent>(&event)) {
      EXPECT_EQ(scored->first_position, 1 + num_scored_);
      num_scored_ += static_cast<int64_t>(scored->logprobs.size());
    }
    if (auto* completed = std::get_if<CompletedEvent>(&event)) completed_ = *completed;
    if (auto* failed = std::get_if<FailedEvent>(&event)) status_ = failed->status;
    ended_ = completed_.has_value() || !status_.ok();
    changed_.notify_all();
  }
  void WaitForEnd() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return ended_; });
  }
  void WaitForTokens(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return tokens_ >= count || ended_; });
  }
  bool ended() const { return Locked(ended_); }
  // In the queue, as it was told.
  std::vector<int> positions() const { return Locked(positions_); }
  int num_prefills() const { return Locked(num_prefills_); }
  int tokens() const { return Locked(tokens_); }
  int num_prompt_logprobs() const { return Locked(num_prompt_logprobs_); }
  std::string prompt_text() const { return Locked(prompt_text_); }
  int64_t num_scored() const { return Locked(num_scored_); }
  std::string text() const { return Locked(text_); }
  absl::Status status() const { return Locked(status_); }
  std::optional<CompletedEvent> completed() const { return Locked(completed_); }

 private:
  template <typename T>
  T Locked(const T& value) const {
    std::lock_guard<std::mutex> lock(mu_);
    return value;
  }
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::vector<int> positions_;
  int num_prefills_ = 0;
  int tokens_ = 0;
  int num_prompt_logprobs_ = 0;
  std::string prompt_text_;
  int64_t num_scored_ = 0;
  std::string text_;
  bool ended_ = false;
  absl::Status status_;
  std::optional<CompletedEvent> completed_;
};

}  // namespace folio::test
