#include "engine/runtime/model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/kv/sequence_slice.h"

namespace folio {

absl::Status NotFiniteError(int64_t position) {
  return absl::DataLossError(
      absl::StrCat("the model gave logits that are not finite at token ", position));
}

SequenceSlice ModelRunner::SliceOf(const ScheduledTokens& part) {
  Sequence* sequence = part.sequence;
  SequenceSlice slice =
      MakeSlice(sequence->plan, sequence->kv, sequence->num_in_kv, part.num_tokens);
  slice.picks = sequence->picks;
  if (const auto* changes = sequence->draw.changes; changes != nullptr) {
    slice.num_logit_changes = static_cast<int>(changes->size());
  }
  return slice;
}

void ModelRunner::AddSlice(const ScheduledTokens& part) {
  const Sequence* sequence = part.sequence;
  batch_.slices.push_back(SliceOf(part));
  batch_.slices.back().reader = static_cast<int>(batch_.slices.size()) - 1;
  batch_.slices.back().row_begin = batch_.num_rows;
  batch_.num_rows += part.num_tokens;
  for (int i = 0; i < part.num_tokens; ++i) {
    int32_t token = sequence->token(sequence->num_in_kv + i);
    if (token == kNotDrawnYet) {
      const auto task = std::find(last_draws_.begin(), last_draws_.end(), sequence->id);
      token = -1 - static_cast<int32_t>(task - last_draws_.begin());
    }
    batch_.tokens.push_back(token);
  }
}

void ModelRunner::AddScores(const ScheduledTokens& part, Started* started) {
  const Sequence& sequence = *part.sequence;
  if (!sequence.scores) return;
  const int64_t first = sequence.num_in_kv + 1;
  // The token after the prompt is drawn.
  const int64_t end = std::min(first + part.num_tokens, sequence.num_prompt);
  if (end <= first) return;
  Scores& scores = started->results.scores.emplace_back(Scores{sequence.id, first, {}});
  scores.logprobs.resize(end - first);
  if (sequence.num_score_top_logprobs > 0) scores.top_logprobs.resize(end - first);
  for (int64_t position = first; position < end; ++position) {
    LogitsTask& task = batch_.logits.emplace_back();
    task.row = batch_.num_rows - part.num_tokens + static_cast<int>(position - first);
    task.scored_token = sequence.token(position);
    task.num_top_logprobs = sequence.num_score_top_logprobs;
    started->draws.push_back(std::nullopt);
  }
}

void ModelRunner::AddDraw(const ScheduledTokens& part, Started* started) {
  const Sequence& sequence = *part.sequence;
  if (!sequence.generates || sequence.num_pending() != part.num_tokens) return;
  LogitsTask& task = batch_.logits.emplace_back(sequence.draw);
  task.row = batch_.num_rows - 1;
  task.index = sequence.num_known - sequence.num_prompt;
  started->results.outputs.push_back({sequence.id, {}});
  started->draws.push_back(sequence.id);
}

void ModelRunner::Start(const std::vector<ScheduledTokens>& step) {
  batch_.num_rows = 0;
  batch_.slices.clear();
  batch_.tokens.clear();
  batch_.logits.clear();
  Started& started = started_.emplace_back();
  absl::Cleanup forget = [this] { started_.pop_back(); };
  for (const ScheduledTokens& part : step) {
    AddSlice(part);
    AddScores(part, &started);
    AddDraw(part, &started);
  }
  std::vector<std::optional<RequestId>> draws = started.draws;
  transformer_->Start(batch_);
  last_draws_.swap(draws);
  std::move(forget).Cancel();
}

ModelRunner::Results ModelRunner::Finish() {
  Started started = std::move(started_.front());
  started_.pop_front();
  transformer_->Finish(&samples_);
  Results& results = started.results;
  if (!transformer_->status().ok()) return std::move(results);
  // Outputs and scores are in the order of their tasks.
  size_t output = 0;
  size_t scores = 0;
  size_t scored = 0;
  for (size_t n = 0; n < samples_.size(); ++n) {
    if (started.draws[n].has_value()) {
      results.outputs[output++].sample = std::move(samples_[n]);
      continue;
    }
    Scores& of_sequence = results.scores[scores];
    std::vector<float>& logprobs = of_sequence.logprobs;
    if (!samples_[n].finite && !of_sequence.not_finite.has_value()) {
      of_sequence.not_finite = of_sequence.first_position + static_cast<int64_t>(scored);
    }
    if (!of_sequence.top_logprobs.empty()) {
      of_sequence.top_logprobs[scored] = std::move(samples_[n].top_logprobs);
    }
    logprobs[scored++] = samples_[n].logprob;
    if (scored < logprobs.size()) continue;
    scored = 0;
    ++scores;
  }
  return std::move(results);
}

}  // namespace folio
