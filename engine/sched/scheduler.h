#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv/kv_store.h"
#include "engine/sched/fair_share.h"
#include "engine/sched/forecast.h"
#include "engine/sched/sequence.h"
#include "engine/sched/step_pacer.h"
#include "engine/sched/step_rates.h"
#include "engine/sched/work_costs.h"

namespace folio {

struct SchedulerOptions {
  // Rows in one step, and the most that one prefill may take while others wait.
  int step_tokens = 512;
  int prefill_share_tokens = 256;
  // Rows in one step of sequences that need the logits of every row.
  int score_rows = 128;
  // A step with prompts takes at most so many times as long as one of its answers alone
  // (StepPacer); 0: no bound.
  double prefill_slowdown = 0;
  WorkCosts costs = {};
};

// Part of a step: the next `num_tokens` tokens of one sequence.
struct ScheduledTokens {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
};

// Decides what runs in each step and owns admission: a sequence is admitted only with all frames
// that it will ever hold reserved, so nothing admitted fails for lack of them. Where memory is
// short, what can be evicted is. What a step needs beside frames (workspace of the backend) is
// asked for when the step is planned, and may be refused. Plan first, then commit: NextStep
// proposes, Commit alone advances counters. Engine thread only; borrows sequences and the store.
class Scheduler {
 public:
  // Memory beside the cache that one more part of a step needs, `first` being the first of it.
  using Reserve = std::function<absl::Status(const ScheduledTokens& part, bool first)>;

  // Frees cache that nobody reads until `bytes` can be reserved; false if that is not enough.
  using EvictFor = std::function<bool(int64_t bytes)>;

  Scheduler(const SchedulerOptions& options, KvStore* store, Reserve reserve = {},
            EvictFor evict_for = {})
      : options_(options),
        store_(store),
        reserve_(std::move(reserve)),
        evict_for_(std::move(evict_for)),
        pacer_(options.prefill_slowdown) {}

  // Its claim ages from now on.
  void Join(Sequence* sequence) { shares_.Join(&sequence->claim); }

  // Bytes a sequence must reserve before it runs, once its prefix is complete.
  int64_t BytesNeeded(const Sequence& sequence) const;

  // Reserves memory, forks the prefix's cache and lets the sequence run; false if memory is short.
  // Without host memory it throws std::bad_alloc and has done nothing.
  bool Admit(Sequence* sequence);

  // Raises the reservation of a running sequence to its present max_tokens; false if memory is
  // short.
  bool Grow(Sequence* sequence);

  // Its cache is lost: it is computed again from the first token on, in the memory that is reserved
  // for it. Without host memory it throws std::bad_alloc and has done nothing.
  void BeginAgain(Sequence* sequence);

  // Frees a sequence's memory and forgets it. Also for sequences that were never admitted.
  void Remove(Sequence* sequence);

  // Stops scheduling a sequence but keeps its cache: a finished document.
  void Retire(Sequence* sequence);

  // The next step: one token of every decoding sequence first, then prefills, of which no more than
  // keeps the answers' pace, as FairShare shares them out. Pages for all tokens are allocated, and
  // what else the step needs is reserved; a sequence that gets none is left out of the step and put
  // into failures(). Empty if there is nothing to run. Valid until the next call; needs no host
  // memory but for what it provides.
  struct Failure {
    Sequence* sequence = nullptr;
    absl::Status status;
  };
  const std::vector<ScheduledTokens>& NextStep();
  const std::vector<Failure>& failures() const { return failures_; }

  // The step ran: advances the counters, frees pages that nobody can see any more and lets those
  // that are complete leave memory.
  void Commit(const std::vector<ScheduledTokens>& step);

  // A step took `seconds`: later ones are sized by it.
  void NoteStep(const StepWork& work, double seconds) {
    pacer_.Note(work, seconds);
    rates_.Note(LoadOf(work), seconds);
  }

  const FairShare& shares() const { return shares_; }
  const StepRates& rates() const { return rates_; }
  // What steps may have, and how fast they are.
  void Describe(WorkLoad* load) const;
  // A sequence as a forecast sees it: its tenant and what is left of its prompt.
  LoadItem Describe(const Sequence& sequence) const;
  // How long a request of so many tokens, the prompt's of so much work, takes beside those that
  // run, as steps are now; 0: unknown.
  double UsualSeconds(double prompt_tokens, double prompt_work, double answer_tokens,
                      int num_answers) const;
  const std::vector<Sequence*>& running() const { return running_; }
  // Of the tokens of a prompt in a step that is to be committed; 0 for an answer's.
  double WorkOf(const ScheduledTokens& part) const;
  // Of an answer's token beside the weights; 0 for a prompt's.
  double WorkOfAnswer(const ScheduledTokens& part) const;
  // The first token of its prompt that is to be computed: it has those before it in the cache, or
  // finds them there.
  static int64_t BeginOfPrefill(const Sequence& sequence);
  double WorkLeft(const Sequence& sequence) const;

  int num_running() const { return static_cast<int>(running_.size()); }
  // Whether another sequence than this one has tokens for the next step.
  bool HasWorkBeside(const Sequence* one) const;

 private:
  // Reserves bytes of cache, evicting if need be; false if that is not enough, or more than its
  // tenant may have.
  bool ReserveOrEvict(Sequence* sequence, int64_t bytes);
  // Room in the lists below for one more sequence.
  void MakeRoom();
  void PlanDecodes(int* budget);
  absl::Status Provide(const ScheduledTokens& part, bool first);
  // A chunk that is completed is worth chunk_tokens tokens of the budget.
  void PlanPrefills(int64_t budget, int64_t chunk_tokens);
  // Of step_ from `first` on.
  void CompleteOneChunk(std::vector<ScheduledTokens>::iterator first, int64_t chunk_tokens,
                        int64_t* budget);
  void ChangeReservation(Sequence* sequence, int64_t bytes);

  const SchedulerOptions options_;
  KvStore* const store_;
  const Reserve reserve_;
  const EvictFor evict_for_;
  StepPacer pacer_;
  StepRates rates_;
  FairShare shares_;
  std::vector<Sequence*> running_;  // in order of admission
  // Of the last step; each has room for all that run.
  std::vector<ScheduledTokens> step_;
  std::vector<Claim*> claims_;
  std::vector<Failure> failures_;
};

}  // namespace folio
