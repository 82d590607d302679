#include "engine/runtime/model_runner.h"

#include <utility>

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
    batch_.tokens.push_back(sequence->token(sequence->num_in_kv + i));
  }
}

void ModelRunner::AddLogits(const ScheduledTokens& part) {
  Sequence* sequence = part.sequence;
  const int first_row = batch_.num_rows - part.num_tokens;
  if (sequence->scores) {
    scores_.push_back({sequence, sequence->num_in_kv + 1, {}});
    for (int i = 0; i < part.num_tokens; ++i) {
      const int32_t next = sequence->token(sequence->num_in_kv + 1 + i);
      LogitsTask& task = batch_.logits.emplace_back();
      task.row = first_row + i;
      task.scored_token = next;
    }
  } else if (sequence->generates && sequence->num_pending() == part.num_tokens) {
    outputs_.push_back({sequence, {}});
    batch_.logits.push_back(sequence->draw);
    batch_.logits.back().row = batch_.num_rows - 1;
  }
}

std::vector<ModelRunner::Output>& ModelRunner::Run(const std::vector<ScheduledTokens>& step) {
  batch_.num_rows = 0;
  batch_.slices.clear();
  batch_.tokens.clear();
  batch_.logits.clear();
  outputs_.clear();
  scores_.clear();
  for (const ScheduledTokens& part : step) {
    AddSlice(part);
    AddLogits(part);
  }
  transformer_->Run(batch_, &samples_);
  if (!transformer_->status().ok()) return outputs_;
  // Outputs and scores are in the order of their parts.
  size_t at = 0;
  size_t output = 0;
  size_t scored = 0;
  for (const ScheduledTokens& part : step) {
    if (output < outputs_.size() && outputs_[output].sequence == part.sequence) {
      outputs_[output++].sample = std::move(samples_[at++]);
    } else if (scored < scores_.size() && scores_[scored].sequence == part.sequence) {
      std::vector<float>& logprobs = scores_[scored++].logprobs;
      for (int i = 0; i < part.num_tokens; ++i) logprobs.push_back(samples_[at++].logprob);
    }
  }
  return outputs_;
}

}  // namespace folio
