#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/types/request.h"

namespace folio {

// A step that took long, and what was in it.
struct SlowStep {
  // Tokens of one prompt, scored text or document.
  struct Prefill {
    RequestId request = 0;  // 0: a document
    int64_t num_tokens = 0;
    int64_t num_before = 0;  // that they attend to, where all are seen
  };
  static constexpr size_t kMaxPrefills = 4;

  double seconds = 0;
  // Answers that got a token each, and the tokens before these in all of them together.
  int num_answers = 0;
  int64_t answer_context_tokens = 0;
  // All that was prefilled.
  int num_prefills = 0;
  int64_t prefill_tokens = 0;

  // The largest prefills, most tokens first.
  std::span<const Prefill> largest() const { return {prefills.data(), num_largest}; }

  std::array<Prefill, kMaxPrefills> prefills{};
  size_t num_largest = 0;
};

}  // namespace folio
