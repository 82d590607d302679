// A grammar of token ids, whose answers can be counted by hand.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/types/answer_grammar.h"
#include "gtest/gtest.h"

namespace folio::test {

// Token n of an answer is one of those with id % 5 == n % 5; after `length` of them the answer is
// complete, and after half of them it may be. `dead_end`: no token is allowed in that place.
class FifthsGrammar final : public AnswerGrammar {
 public:
  FifthsGrammar(int vocab, int length, int dead_end = -1)
      : vocab_(vocab), length_(length), dead_end_(dead_end) {}

  bool Allows(int place, int32_t token, const std::vector<int32_t>& ending) const {
    if (std::ranges::count(ending, token) > 0) return 2 * place >= length_;
    return place < length_ && place != dead_end_ && token % 5 == place % 5;
  }
  std::unique_ptr<AnswerState> Begin(const std::vector<int32_t>& ending) const override {
    return std::make_unique<State>(*this, ending);
  }
  int64_t bytes() const override { return 0; }

 private:
  class State final : public AnswerState {
   public:
    State(const FifthsGrammar& grammar, std::vector<int32_t> ending)
        : grammar_(grammar), ending_(std::move(ending)), allowed_((grammar.vocab_ + 31) / 32) {
      Update();
    }
    const std::vector<uint32_t>& allowed() const override { return allowed_; }
    void Accept(int32_t token) override {
      EXPECT_TRUE(Allows(token));
      ++place_;
      Update();
    }
    bool must_end() const override { return place_ == grammar_.length_; }
    const absl::Status& status() const override { return status_; }

   private:
    void Update() {
      std::ranges::fill(allowed_, 0u);
      if (place_ == grammar_.dead_end_) status_ = absl::FailedPreconditionError("a dead end");
      for (int32_t token = 0; status_.ok() && token < grammar_.vocab_; ++token) {
        if (grammar_.Allows(place_, token, ending_)) allowed_[token / 32] |= 1u << (token % 32);
      }
    }
    const FifthsGrammar& grammar_;
    const std::vector<int32_t> ending_;
    std::vector<uint32_t> allowed_;
    int place_ = 0;
    absl::Status status_;
  };
  const int vocab_;
  const int length_;
  const int dead_end_;
};

}  // namespace folio::test
