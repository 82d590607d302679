#pragma once

#include <cstdint>

#include "engine/types/attention_plan.h"
#include "engine/types/model_shape.h"

namespace folio {

// What tokens cost, in tokens of a prompt that attend to nothing: a prompt's by what is computed,
// an answer's by the bytes that are read.
struct WorkCosts {
  // Of a model, whose keys and values take so many bytes for each token.
  static WorkCosts Of(const ModelShape& shape, int64_t weight_bytes, int64_t kv_bytes_per_token);

  // One token of a prompt at `position`; all of [begin, end).
  double OfPromptToken(const AttentionPlan& plan, int64_t position) const;
  double OfPrompt(const AttentionPlan& plan, int64_t begin, int64_t end) const;
  // The next token of one of the `num_answers` answers in a step, which share the weights.
  double OfAnswer(const AttentionPlan& plan, int64_t position, int64_t num_answers) const;
  // The same without its part of the weights.
  double OfAnswerBeside(const AttentionPlan& plan, int64_t position) const;

  // To attend to one token, of what a token costs without.
  double attended = 0;
  // To read all weights once, and keys and values of one token.
  double weights = 64;
  double attended_by_answer = 0;
};

}  // namespace folio
