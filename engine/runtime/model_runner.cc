#include "engine/runtime/model_runner.h"

#include <algorithm>
#include <cmath>

namespace folio {

void ModelRunner::AddSlice(const ScheduledTokens& part) {
  Sequence* sequence = part.sequence;
  SequenceSlice slice;
  slice.row_begin = batch_.num_rows;
  slice.num_rows = part.num_tokens;
  slice.first_position = sequence->num_in_kv;
  slice.plan = &sequence->plan;
  slice.first_page = sequence->kv.first_page;
  slice.pages = sequence->kv.pages;
  slice.sinks = sequence->kv.sinks;
  slice.summaries = sequence->kv.summaries;
  slice.pending_queries = &sequence->kv.pending_queries;
  slice.picks = sequence->picks;
  batch_.slices.push_back(slice);
  batch_.num_rows += part.num_tokens;
  for (int i = 0; i < part.num_tokens; ++i) {
    tokens_.push_back(sequence->token(sequence->num_in_kv + i));
  }
}

const std::vector<ModelRunner::Output>& ModelRunner::Run(const std::vector<ScheduledTokens>& step,
                                                         int vocab_size) {
  batch_.num_rows = 0;
  batch_.slices.clear();
  tokens_.clear();
  logit_rows_.clear();
  outputs_.clear();
  scores_.clear();
  for (const ScheduledTokens& part : step) {
    AddSlice(part);
    const Sequence& sequence = *part.sequence;
    const int first_row = batch_.num_rows - part.num_tokens;
    if (sequence.scores) {
      for (int row = first_row; row < batch_.num_rows; ++row) logit_rows_.push_back(row);
      scores_.push_back({part.sequence, sequence.num_in_kv + 1, {}});
      scores_.back().logprobs.resize(part.num_tokens);
    } else if (sequence.generates && sequence.num_pending() == part.num_tokens) {
      logit_rows_.push_back(batch_.num_rows - 1);
      outputs_.push_back({part.sequence, {}});
    }
  }
  const std::span<const float> logits = transformer_->Forward(batch_, tokens_, logit_rows_);
  // In the order of the rows: outputs and scores in the order of their parts.
  size_t at = 0;
  size_t output = 0;
  size_t scored = 0;
  for (const ScheduledTokens& part : step) {
    if (output < outputs_.size() && outputs_[output].sequence == part.sequence) {
      outputs_[output++].logits = logits.subspan(at++ * vocab_size, vocab_size);
    } else if (scored < scores_.size() && scores_[scored].sequence == part.sequence) {
      Scores& scores = scores_[scored++];
      for (size_t i = 0; i < scores.logprobs.size(); ++i) {
        const int32_t next = part.sequence->token(scores.first_position + static_cast<int64_t>(i));
        scores.logprobs[i] = LogProb(logits.subspan(at++ * vocab_size, vocab_size), next);
      }
    }
  }
  return outputs_;
}

float ModelRunner::LogProb(std::span<const float> logits, int32_t token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return logits[token] - max - std::log(sum);
}

}  // namespace folio
