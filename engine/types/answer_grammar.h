#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace folio {

// Which tokens may come next in one answer. Engine thread only.
class AnswerState {
 public:
  virtual ~AnswerState() = default;

  // [ceil(vocab_size / 32)] one bit per token, those behind the vocabulary 0. Those that end an
  // answer are allowed where it may end. The same object for good; Accept changes it. All bits 0:
  // no token may come, status() says why.
  virtual const std::vector<uint32_t>& allowed() const = 0;
  // REQUIRES: Allows(token), and it is none of those that end an answer.
  virtual void Accept(int32_t token) = 0;
  // The answer is complete, and nothing but an end can follow.
  virtual bool must_end() const = 0;
  virtual const absl::Status& status() const = 0;

  bool Allows(int32_t token) const { return (allowed()[token / 32] >> (token % 32) & 1u) != 0; }
};

// A language that an answer must be in, for one vocabulary. Immutable, shared by requests.
class AnswerGrammar {
 public:
  virtual ~AnswerGrammar() = default;

  // At the start of an answer that these tokens end.
  virtual std::unique_ptr<AnswerState> Begin(const std::vector<int32_t>& ending) const = 0;
  virtual int64_t bytes() const = 0;
};

}  // namespace folio
