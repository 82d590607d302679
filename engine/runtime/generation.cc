#include "engine/runtime/generation.h"

#include <algorithm>
#include <utility>

#include "engine/attention/visible_keys.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/memory_receipt.h"
#include "engine/runtime/shared_prompts.h"

namespace folio {
namespace {

constexpr std::chrono::seconds kProgressInterval{1};
constexpr int64_t kProgressParts = 16;

double Seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

bool Contains(std::span<const int32_t> values, int32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

Generation::Generation(GenerateSpec request, std::shared_ptr<EventSink> sink,
                       const Tokenizer& tokenizer, std::span<const int32_t> eos_tokens,
                       TenantAccounts::Ticket ticket)
    : spec(std::move(request)),
      ticket_(std::move(ticket)),
      sink_(std::move(sink)),
      eos_tokens_(eos_tokens),
      detokenizer_(tokenizer, IncrementalDetokenizer::Start::kContinuation),
      stops_(spec.stop.stop_strings) {
  sequence.generates = true;
  if (spec.tenant != nullptr) sequence.claim.tenant = &ticket_.account()->share;
  sequence.claim.priority = spec.priority;
  sequence.draw.sampling = &spec.sampling;
  if (spec.logprobs) sequence.draw.num_top_logprobs = spec.num_top_logprobs;
  if (PromptReport::IsWanted(spec)) prompt_report_.emplace(spec, tokenizer);
  sequence.scores = spec.prompt_logprobs;
  sequence.num_score_top_logprobs = spec.num_prompt_top_logprobs;
  if (WantsEvidence()) sequence.picks = std::make_shared<ChunkPicks>();
  sequence.tokens = std::make_shared<std::vector<int32_t>>(std::move(spec.tokens));
}

Phase Generation::phase() const {
  if (!admitted) {
    return shared_prompt != nullptr && shared_prompt->admitted ? Phase::kPrefill : Phase::kQueued;
  }
  return sequence.decoding() ? Phase::kDecode : Phase::kPrefill;
}

void Generation::Await(Wait what, SteadyTime now) {
  const double waited = Seconds(std::exchange(awaits_since_, now), now);
  switch (std::exchange(awaited_, what)) {
    case Wait::kTurn:
      scheduling_.turn_seconds += waited;
      break;
    case Wait::kMemory:
      scheduling_.memory_seconds += waited;
      break;
    case Wait::kDocument:
      scheduling_.document_seconds += waited;
      break;
    case Wait::kPrompt:
      prompt_seconds_ += waited;
      break;
  }
}

void Generation::Admit() {
  admitted = true;
  admitted_ = Now();
  Await(Wait::kMemory, admitted_);  // should it be lost
  ticket_.Runs();
}

void Generation::BeginAgain() {
  scheduling_.times_restarted = ++times_begun_again_;
  admitted = false;
  if (sequence.num_known > sequence.num_prompt) sequence.tokens->pop_back();  // not drawn yet
  sequence.num_known = sequence.num_prompt;
  sequence.num_in_kv = 0;
  sequence.paused = false;
}

void Generation::PrepareDraws(int vocab_size) {
  NoteSeen(vocab_size);
  MakeRules(vocab_size);
  if (spec.grammar != nullptr && grammar_state_ == nullptr) {
    grammar_state_ = spec.grammar->Begin(EndingTokens(vocab_size));
    sequence.draw.allowed = &grammar_state_->allowed();
  }
  sequence.draws_follow_tokens = DrawsFollowTokens();
}

void Generation::NoteSeen(int vocab_size) {
  if (spec.sampling.repetition_penalty == 1.0f || seen_.has_value()) return;
  seen_.emplace(vocab_size);
  if (rendition != nullptr) {
    for (int32_t token : *rendition->sequence.tokens) seen_->Add(token);
  }
  for (int32_t token : *sequence.tokens) seen_->Add(token);
  sequence.draw.seen = &*seen_;
}

void Generation::MakeRules(int vocab_size) {
  if (rules_.has_value() || !LogitRules::AreNeeded(spec.sampling, spec.stop.min_new_tokens)) return;
  rules_.emplace(spec.sampling, EndingTokens(vocab_size), spec.stop.min_new_tokens);
  rules_->Begin(*sequence.tokens);
  sequence.draw.changes = &rules_->changes();
}

std::vector<int32_t> Generation::EndingTokens(int vocab_size) const {
  std::vector<int32_t> ending = spec.stop.stop_token_ids;
  if (!spec.stop.ignore_eos) ending.insert(ending.end(), eos_tokens_.begin(), eos_tokens_.end());
  // A checkpoint may name tokens for which it has no logits.
  std::erase_if(ending, [vocab_size](int32_t token) { return token < 0 || token >= vocab_size; });
  return ending;
}

absl::Status Generation::CheckDrawn(int32_t token) const {
  if (grammar_state_ != nullptr && !grammar_state_->status().ok()) return grammar_state_->status();
  const bool is_masked = rules_.has_value() && rules_->Masks(token);
  const bool is_outside = grammar_state_ != nullptr && !grammar_state_->Allows(token);
  if (!is_masked && !is_outside) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "no token is left to draw: bad_words, min_new_tokens and the constraint rule out all of the "
      "vocabulary");
}

bool Generation::Accept(Sample sample) {
  if (num_generated_++ == 0) first_token_ = Now();
  if (seen_.has_value()) seen_->Add(sample.token);
  const bool at_eos = !spec.stop.ignore_eos && Contains(eos_tokens_, sample.token);
  const bool at_stop = Contains(spec.stop.stop_token_ids, sample.token);

  DeltaEvent delta;
  delta.tokens.push_back(sample.token);
  if (spec.logprobs) {
    delta.logprobs.push_back({sample.token, sample.logprob});
    delta.top_logprobs.push_back(std::move(sample.top_logprobs));
  }
  if (grammar_state_ != nullptr && !at_eos && !at_stop) grammar_state_->Accept(sample.token);
  const bool at_end = grammar_state_ != nullptr && grammar_state_->must_end();
  const bool at_length = num_generated_ >= spec.stop.max_new_tokens;
  std::optional<std::string> stop_string;
  if (!at_eos && !at_stop) {
    std::string text = detokenizer_.Add(sample.token);
    if (at_length || at_end) text += detokenizer_.Flush();
    if (num_generated_ <= spec.stop.min_new_tokens) {
      delta.text = std::move(text);
    } else {
      StopStringMatcher::Result matched = stops_.Feed(text);
      delta.text = std::move(matched.text);
      stop_string = std::move(matched.stop);
    }
  } else {
    StopStringMatcher::Result matched = stops_.Feed(detokenizer_.Flush());
    delta.text = std::move(matched.text);
  }
  const bool done = at_eos || at_stop || at_end || at_length || stop_string.has_value();
  if (done && !stop_string.has_value()) delta.text += stops_.Flush();
  sink_->OnEvent(std::move(delta));
  if (done) {
    const bool stopped = at_eos || at_stop || at_end || stop_string.has_value();
    Complete(stopped ? FinishReason::kStop : FinishReason::kLength,
             at_eos || at_stop ? std::optional<int32_t>(sample.token) : std::nullopt,
             std::move(stop_string));
    return true;
  }
  const int64_t place = next_position() - 1 - sequence.tokens_begin;
  (*sequence.tokens)[place] = sample.token;
  if (rules_.has_value()) rules_->Add(std::span(*sequence.tokens).first(place + 1));
  sequence.draws_follow_tokens = DrawsFollowTokens();
  return false;
}

void Generation::NoteEvidence(int num_layers) {
  // Rows that do not choose yet leave no picks.
  if (sequence.picks == nullptr || sequence.picks->picks.empty()) return;
  evidence_.Add(*sequence.picks, sequence.plan.selection, num_layers);
}

void Generation::SendEvidence() {
  const ChunkSelection& selection = sequence.plan.selection;
  const int64_t last_query = sequence.num_prompt + num_generated_ - 2;
  EvidenceEvent event;
  event.spans = evidence_.Spans(selection.chunk_tokens, sequence.num_prompt,
                                static_cast<size_t>(spec.max_evidence_spans));
  event.chunk_tokens = selection.chunk_tokens;
  event.candidates_end = ViewChunks(selection, last_query, false).candidates_end;
  if (spec.layer_evidence) event.layers = evidence_.Layers();
  for (EvidenceEvent::Span& span : event.spans) {
    for (int64_t i = span.token_begin; i < span.token_end; ++i) {
      const bool of_document = i < sequence.tokens_begin;
      span.tokens.push_back(of_document ? rendition->sequence.token(i) : sequence.token(i));
    }
  }
  sink_->OnEvent(std::move(event));
}

void Generation::Complete(FinishReason reason, std::optional<int32_t> stop_token,
                          std::optional<std::string> stop_string) {
  if (WantsEvidence()) SendEvidence();
  const SteadyTime now = Now();
  CompletedEvent done;
  done.reason = reason;
  done.stop_token = stop_token;
  done.stop_string = std::move(stop_string);
  done.usage = {sequence.num_prompt, cached_tokens, num_generated_};
  done.timings.queue_seconds = Seconds(submitted_, admitted_) - prompt_seconds_;
  done.timings.prefill_seconds = Seconds(admitted_, first_token_) + prompt_seconds_;
  done.timings.time_to_first_token_seconds = Seconds(submitted_, first_token_);
  done.timings.decode_seconds = Seconds(first_token_, now);
  done.scheduling = scheduling_;
  if (const double steps = static_cast<double>(scheduling_.num_steps); steps > 0) {
    done.scheduling.mean_step_requests = static_cast<double>(step_requests_) / steps;
    done.scheduling.step_token_share =
        static_cast<double>(own_step_tokens_) / static_cast<double>(step_tokens_);
  }
  done.memory = memory_;
  if (num_decodes_ > 0) {
    done.memory.attended_tokens_mean =
        static_cast<double>(attended_tokens_) / static_cast<double>(num_decodes_);
  }
  sink_->OnEvent(std::move(done));
}

void Generation::Fail(absl::Status status) {
  sink_->OnEvent(FailedEvent{std::move(status), phase()});
}

void Generation::SendQueued(int position, SteadyTime now) {
  if (position == last_queue_position_ || now < next_queued_) return;
  last_queue_position_ = position;
  next_queued_ = now + kProgressInterval;
  sink_->OnEvent(QueuedEvent{position});
}

void Generation::SendSharedPrefill(int64_t total, int64_t processed, SteadyTime now) {
  const int64_t more = processed - std::min(processed, last_shared_prefill_);
  if (now < next_shared_prefill_ && more < total / kProgressParts) return;
  next_shared_prefill_ = now + kProgressInterval;
  last_shared_prefill_ = processed;
  SendPrefill(total, processed);
}

void Generation::SendPrefill(int64_t total, int64_t processed) {
  sink_->OnEvent(PrefillEvent{total, cached_tokens, processed});
}

void Generation::SendPrompt() {
  if (prompt_report_.has_value()) prompt_report_->Send(sequence, sink_.get());
}

void Generation::NoteStep(int64_t tokens, int64_t step_tokens, int64_t step_requests) {
  ++scheduling_.num_steps;
  own_step_tokens_ += tokens;
  step_tokens_ += step_tokens;
  step_requests_ += step_requests;
  if (sequence.num_in_kv >= sequence.num_prompt) ticket_.IsInCache();
}

void Generation::NoteDecode(int64_t position) {
  attended_tokens_ += NumVisibleKeys(sequence.plan, position);
  ++num_decodes_;
}

void Generation::NoteMemory(const KvFootprint& footprint) { Add(footprint, &memory_); }

void Generation::NoteReads(Tier home, const SliceReads& reads) {
  memory_.slice_hits += reads.hits;
  memory_.slice_misses += reads.misses;
  (home == Tier::kHost ? memory_.host_read_bytes : memory_.disk_read_bytes) += reads.bytes_in;
  memory_.disk_wait_seconds += reads.seconds_waited;
}

}  // namespace folio
