#include "engine/runtime/model_runner.h"

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
  for (const ScheduledTokens& part : step) {
    AddSlice(part);
    const Sequence& sequence = *part.sequence;
    if (sequence.generates && sequence.num_pending() == part.num_tokens) {
      logit_rows_.push_back(batch_.num_rows - 1);
      outputs_.push_back({part.sequence, {}});
    }
  }
  const std::span<const float> logits = transformer_->Forward(batch_, tokens_, logit_rows_);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i].logits = logits.subspan(i * vocab_size, vocab_size);
  }
  return outputs_;
}

}  // namespace folio
