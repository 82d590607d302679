#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_store.h"
#include "engine/runtime/evidence.h"
#include "engine/runtime/prompt_report.h"
#include "engine/sampling/logit_rules.h"
#include "engine/sampling/stop_criteria.h"
#include "engine/sched/sequence.h"
#include "engine/sched/tenant_account.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/types/request.h"

namespace folio {

struct Rendition;
struct SharedPrompt;

// Everything one running request needs beside its Sequence: turns logits into tokens, text and
// events, and keeps its clock. Engine thread only.
class Generation {
 public:
  // `eos_tokens` end the answer unless the request ignores them. Borrows tokenizer and eos_tokens.
  Generation(GenerateSpec spec, std::shared_ptr<EventSink> sink, const Tokenizer& tokenizer,
             std::span<const int32_t> eos_tokens, TenantAccounts::Ticket ticket = {});

  // What draws need beside logits; its document is known. To be called before Admit.
  void PrepareDraws(int vocab_size);
  // From now on it waits for this. A prompt that it shares is its own prefill, and no queue.
  enum class Wait : uint8_t { kTurn, kMemory, kDocument, kPrompt };
  void Await(Wait what, SteadyTime now);
  Wait awaited() const { return awaited_; }
  // The request runs from now on.
  void Admit();
  // It has given its place to another.
  void NotePreempted() { ++scheduling_.times_preempted; }

  // It waits once more, for its prompt is computed again. REQUIRES: MayBeginAgain; that it holds
  // nothing of the cache.
  void BeginAgain();
  // Nobody has been told a token, and it has not begun again too often.
  bool MayBeginAgain() const { return num_generated_ == 0 && times_begun_again_ < kMostTimesAgain; }
  // What the step gives that it was in when it began again is not its own.
  bool ignores_output() const { return times_begun_again_ > 0 && !admitted; }

  // Takes the next token, drawn as sequence.draw says, in the place that was kept for it, and sends
  // what it adds. Returns true when the answer is complete; Completed was sent then.
  bool Accept(Sample sample);

  // Not OK where the token that was drawn must not come next: then none may.
  absl::Status CheckDrawn(int32_t token) const;

  // Counts the choices of chunks behind the token that Accept gets next.
  void NoteEvidence(int num_layers);

  // Ends the request with an error, once.
  void Fail(absl::Status status);

  // To one that waits. Many wait, and each step changes what they wait for: at most once a second
  // its place in the queue, and a prefill that it shares as often or for each sixteenth of it.
  void SendQueued(int position, SteadyTime now);
  void SendSharedPrefill(int64_t total, int64_t processed, SteadyTime now);
  // Of its own prompt.
  void SendPrefill(int64_t total, int64_t processed);

  // What a step of its prompt gave, to be sent by SendPrompt.
  void TakeScores(ModelRunner::Scores scores) { prompt_report_->Take(std::move(scores)); }
  // Sends what is wanted of the prompt that has been read, if anything is.
  void SendPrompt();

  // It was in a step, with so many of its tokens.
  void NoteStep(int64_t tokens, int64_t step_tokens, int64_t step_requests);
  // Adds keys attended to by the decoding query at `position`, and the memory held then.
  void NoteDecode(int64_t position);
  void NoteMemory(const KvFootprint& footprint);
  void NoteReads(Tier home, const SliceReads& reads);

  int64_t num_generated() const { return num_generated_; }
  SteadyTime submitted() const { return submitted_; }
  Phase phase() const;
  // Of the token that Accept gets next.
  int64_t next_position() const { return sequence.num_prompt + num_generated_; }

  Claim& claim() { return sequence.claim; }

  // The parts that loop and scheduler work with.
  Sequence sequence;
  Rendition* rendition = nullptr;
  SharedPrompt* shared_prompt = nullptr;
  int64_t cached_tokens = 0;
  // Its document is being read from disk; nothing else is known of it.
  bool awaits_document = false;
  bool admitted = false;
  // How often a later request was admitted because this one found no memory.
  int times_passed = 0;
  GenerateSpec spec;

 private:
  static SteadyTime Now() { return std::chrono::steady_clock::now(); }
  void NoteSeen(int vocab_size);
  void MakeRules(int vocab_size);
  // Tokens that end the answer.
  std::vector<int32_t> EndingTokens(int vocab_size) const;
  bool DrawsFollowTokens() const {
    return seen_.has_value() || grammar_state_ != nullptr ||
           (rules_.has_value() && rules_->FollowTokens());
  }
  bool WantsEvidence() const { return spec.max_evidence_spans > 0 || spec.layer_evidence; }
  void SendEvidence();
  void Complete(FinishReason reason, std::optional<int32_t> stop_token,
                std::optional<std::string> stop_string);

  TenantAccounts::Ticket ticket_;
  const std::shared_ptr<EventSink> sink_;
  const std::span<const int32_t> eos_tokens_;
  IncrementalDetokenizer detokenizer_;
  StopStringMatcher stops_;
  std::optional<SeenTokens> seen_;
  std::optional<LogitRules> rules_;
  std::unique_ptr<AnswerState> grammar_state_;  // null: any text
  std::optional<PromptReport> prompt_report_;

  // A disk that damages whatever is written to it ends the request.
  static constexpr int kMostTimesAgain = 2;
  int times_begun_again_ = 0;
  int num_generated_ = 0;
  int last_queue_position_ = -1;
  // When it may be told more.
  SteadyTime next_queued_{};
  SteadyTime next_shared_prefill_{};
  int64_t last_shared_prefill_ = 0;
  const SteadyTime submitted_ = Now();
  SteadyTime admitted_ = submitted_;
  SteadyTime first_token_ = submitted_;
  SteadyTime awaits_since_ = submitted_;
  Wait awaited_ = Wait::kTurn;
  double prompt_seconds_ = 0;  // that it has waited for a shared prompt
  Scheduling scheduling_;
  int64_t step_requests_ = 0;
  int64_t step_tokens_ = 0;
  int64_t own_step_tokens_ = 0;
  EvidenceCounter evidence_;
  MemoryReceipt memory_;
  int64_t attended_tokens_ = 0;
  int64_t num_decodes_ = 0;
};

}  // namespace folio
