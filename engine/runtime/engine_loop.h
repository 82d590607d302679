#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/document_table.h"
#include "engine/runtime/generation.h"
#include "engine/runtime/model_runner.h"
#include "engine/runtime/restore_choice.h"
#include "engine/runtime/scoring_table.h"
#include "engine/runtime/shared_prompts.h"
#include "engine/runtime/slow_step_watch.h"
#include "engine/sched/answer_lengths.h"
#include "engine/sched/arrivals.h"
#include "engine/sched/scheduler.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/types/step_times.h"

namespace folio {

struct EngineLoopOptions {
  SchedulerOptions scheduler;
  AttentionModel model;
  int max_running_requests = 64;
  int vocab_size = 0;
  std::function<void(const absl::Status&)> on_device_failure = {};
  double slow_step_seconds = 0;
  SlowStepWatch::Tell on_slow_step = {};
  // By which deadlines pass and steps are measured; another one in simulations.
  std::function<SteadyTime()> clock = std::chrono::steady_clock::now;
};

// All mutable state of serving: what waits, what runs, what is stored. One step at a time; between
// two steps commands are applied, so a cancelled request frees its memory within one step. Where
// the host has no memory, what is at work fails with RESOURCE_EXHAUSTED and the loop goes on: to
// end requests and to plan steps needs none. Engine thread only.
class EngineLoop {
 public:
  // Runs scheduled steps; the transformer in production, a fake in tests.
  class StepRunner {
   public:
    virtual ~StepRunner() = default;
    // Makes room for one more part of the step that Start is to be given next (Backend::Reserve).
    virtual absl::Status Reserve(const ScheduledTokens& /*part*/, bool /*first*/) {
      return absl::OkStatus();
    }
    // What it throws, it throws before anything is started.
    virtual void Start(const std::vector<ScheduledTokens>& step) = 0;
    // Waits for the oldest step that was started.
    virtual ModelRunner::Results Finish() = 0;
    // Whether a step may be started before the one before it is finished (Backend::runs_ahead).
    virtual bool runs_ahead() const { return false; }
    // Not OK once the device has failed for good (Backend::status).
    virtual absl::Status status() const { return absl::OkStatus(); }
  };

  // Borrows store, runner, directory and keeper, if there is one.
  EngineLoop(const EngineLoopOptions& options, KvStore* store, StepRunner* runner,
             DocumentDirectory* directory, DocumentKeeper* keeper = nullptr)
      : options_(options),
        store_(store),
        runner_(runner),
        scheduler_(
            options.scheduler, store,
            [runner](const ScheduledTokens& part, bool first) {
              return runner->Reserve(part, first);
            },
            [this](int64_t bytes) { return documents_.EvictFor(bytes); }),
        documents_(options.model, &scheduler_, store, directory, &accounts_, keeper),
        prompts_(&scheduler_, &accounts_),
        scorings_(options.model, &scheduler_, store, &documents_),
        arrivals_(options.clock()),
        slow_steps_(options.slow_step_seconds, options.on_slow_step) {}

  ~EngineLoop();

  // Takes a validated request. Fails it at once if its document is gone. May throw std::bad_alloc;
  // Cancel then ends what there is of the request.
  void Submit(RequestId id, std::unique_ptr<Generation> generation);
  // Returns whether there was such a request or stream.
  bool Cancel(RequestId id, const absl::Status& reason);
  // A running request gives up its place but not its cache, and takes one again before all that
  // wait. Ignored for requests that do not run, or are not held back.
  void HoldBack(RequestId id);
  void LetGoOn(RequestId id);
  // Requests, streams and documents.
  void FailAll(const absl::Status& status);

  // What was ordered of the keeper: the tokens of a document, and the cache of a rendition.
  void OnLoaded(const DocumentHandle& handle,
                absl::StatusOr<DocumentKeeper::LoadedDocument> loaded);
  void OnRestored(Rendition* rendition, const absl::StatusOr<DocumentKeeper::Filled>& filled);

  // Any thread.
  TenantAccounts& accounts() { return accounts_; }
  DocumentTable& documents() { return documents_; }
  RestoreChoice& restores() { return restores_; }
  ScoringTable& scorings() { return scorings_; }

  // Lets requests run that there are memory and a place for. RunStep does it, too.
  void AdmitRequests();

  // Expires deadlines, admits what fits and runs one step. False if there was nothing to run. Does
  // not throw what the host's memory is short for.
  bool RunStep();

  struct Counters {
    int64_t steps = 0;
    StepTimes step_times;
    int64_t prefill_tokens = 0;
    int64_t decode_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t nonfinite_logits = 0;
  };
  const Counters& counters() const { return counters_; }
  // The last step that has ended.
  struct LastStep {
    double seconds = 0;
    int answers = 0;
    int64_t prompt_tokens = 0;
  };
  const LastStep& last_step() const { return last_step_; }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_waiting_for(Generation::Wait what) const;
  int num_running() const { return static_cast<int>(running_.size()); }
  // Of those that run: whose prompt is read.
  int num_answering() const;
  int64_t waiting_prefill_tokens() const;
  // Of a token of a prompt beside the answers that run; 0: unknown.
  double PrefillTokenSeconds() const;
  // All work that is there, for forecasts.
  void Describe(WorkLoad* load) const;
  // The earliest deadline of all requests, and of reads that somebody waits for, if any.
  std::optional<SteadyTime> NextDeadline() const;

 private:
  // A step that was started. Sequences of its requests may be gone when it is finished.
  struct StartedStep {
    std::vector<ScheduledTokens> parts;
    std::vector<RequestId> ids;  // of the parts; 0: a document's, or a shared prompt's
    int64_t num_tokens = 0;
    int64_t num_requests = 0;
  };
  enum class Admission {
    kAdmitted,
    kNotYet,        // what it reads is on the way: its document, a shared prompt
    kNoPlace,       // in the batch
    kBoundReached,  // of its tenant
    kKeptForOthers,
    kNoMemory,
    kFailed,
  };
  // One look at all that wait.
  struct Look {
    SteadyTime now;
    bool cache_pending = false;  // that some of them read
    // What those wait for that are not tried any more.
    std::optional<Generation::Wait> all_wait;
  };

  // What a generation reads of its document, and what it asks; false if the document is gone.
  bool Prepare(Generation* generation);
  // So many tokens of its prompt were there.
  void SetCached(Generation* generation, int64_t tokens);
  // Tokens of its prompt that are computed for it.
  static int64_t PromptLeft(const Generation& generation);
  // Prepares it, and it waits from now on. If its document is gone it fails.
  void Begin(Generation* generation);
  void ExpireDeadlines();
  // Why it ends at this time for its deadline: that has passed, or certainly will before its first
  // token; OK: it goes on.
  absl::Status CheckDeadline(const Generation& generation, SteadyTime now) const;
  // Those that would end after their deadlines come last.
  void FindLate(SteadyTime now);
  // Of its prompt, as Scheduler::WorkLeft.
  double WorkLeft(const Generation& generation) const;
  // Tokens of its answer still to come, as answers have come out.
  double AnswerLeft(const Generation& generation) const;
  LoadItem Describe(const Generation& generation) const;
  // When a request that waits for the disk gives up; nullopt: it does not wait for it.
  std::optional<SteadyTime> DiskDeadline(const Generation& generation) const;
  void AdmitReturning();
  // Documents and requests, in this order but for kMaxTimesPassed requests that fit. A request that
  // was passed so often has others wait: those of its tenant if that has some admitted, else all.
  void AdmitDocuments();
  void AdmitWaiting();
  Admission TryAdmit(Generation* generation);
  Admission TryAdmitRequest(Generation* generation);
  // Once there is room for the prompt that a request shares, and one of its answers: these free it.
  Admission TryAdmitPrompt(Generation* generation, int64_t needed);
  // In the place of one request of a tenant that has several, if this one's tenant has none. That
  // one goes on where it was when a place is free again, before all that wait.
  Admission TryAdmitInstead(Generation* generation);
  // False if one was ended: then others have what it held.
  bool LookAtWaiting();
  void TakePlace(Generation* generation, Look* look);
  void AwaitCache(Generation* generation, Look* look);
  void AwaitMemory(Generation* generation, Look* look);
  // AwaitMemory, or somebody has to go: returns false then.
  bool AwaitMemoryOrEnd(Generation* generation, Look* look);
  // AwaitTurn, or it ends where only documents of its tenant keep it from running: false then.
  bool AwaitTenant(Generation* generation, Look* look);
  // Nothing frees memory but a prompt that requests share and that does not leave enough for any of
  // them: other prompts are computed later, then this request computes its own. False: there is
  // none.
  bool LetGoOfPrompts(Generation* generation, const TenantShare* tenant);
  // What a request that waits has to reserve next: for the rendition that it waits for, or itself,
  // with the prompt that it waits for.
  int64_t BytesLacking(const Generation& generation) const;
  // Of a request that does not fit though no other one runs.
  absl::Status WhyNoRoom(const Generation& generation) const;
  // Whether the memory of requests that are held back is what it lacks.
  bool MayRoomBeMadeFor(const Generation& generation) const;
  // Frees memory when it ends: a request, a scored stream, a rendition or prompt that somebody
  // waits for.
  bool SomethingRuns() const;
  // Of those that wait: what one of them reads is being computed, or read from disk.
  bool HasPendingCache() const;
  // What was computed from pages that are lost in the step is computed again from its tokens:
  // documents, and requests that have no token yet. Others that have read them end.
  void RepairLost(const std::vector<ScheduledTokens>& step);
  void RepairRendition(Rendition* rendition);
  void RepairPrompt(SharedPrompt* prompt);
  // A request computes its prompt again, or ends.
  void RepairRequest(RequestId id);
  // It waits again, and holds nothing of the cache.
  void BeginAgain(Generation* generation);
  void LetGoOfRendition(Generation* generation);
  void LetGoOfPrompt(Generation* generation);
  // Starts a step and commits it; false if that has thrown, which fails the sequences of the step.
  bool StartStep(const std::vector<ScheduledTokens>& step);
  // Advances the sequences of a step that was started, and keeps a place for the tokens it draws.
  void Commit(const std::vector<ScheduledTokens>& step);
  // Whether the next step can be planned before this one is finished: what it draws decides nothing
  // but whether an answer ends.
  bool MayRunAhead(const std::vector<ScheduledTokens>& step) const;
  // Waits for the oldest started step and hands out what it gave; false if the device has failed.
  bool FinishStep();
  void AfterStep(const StartedStep& step, ModelRunner::Results* results);
  // Of the request with this part of the step.
  void NoteStep(const StartedStep& step, size_t part);
  void AcceptOutput(ModelRunner::Output output);
  // Of a scored stream, or of a request's prompt.
  void AcceptScores(ModelRunner::Scores scores);
  // The sequences of a step cannot go on.
  void FailStep(const StartedStep& step, const absl::Status& status);
  void Count(const std::vector<ScheduledTokens>& step);
  // Documents that nobody asks about are prefilled, if nobody waits.
  void CompleteDocuments();
  // How long the last step has taken; `document_rows` of its rows were documents'.
  void Measure(double seconds, int64_t document_rows, int64_t rows);
  // The cache of a document is there for a question soon: it is read from disk, or computed.
  void Restore(Rendition* rendition, const Generation& question);
  void SendProgress();
  void OnDeviceFailure(const absl::Status& status);
  // A part of a step got no memory: its sequence fails alone, with those that wait for it.
  void FailPart(RequestId id, const Sequence* sequence, const absl::Status& status);
  // Fails requests that read the cache of a document, or of a prompt.
  template <typename Cache>
  void FailReaders(Cache* Generation::*cache, const Cache* of, const absl::Status& status);
  // Frees a request that has sent its last event.
  void Forget(Generation* generation);

  const EngineLoopOptions options_;
  absl::Status device_failure_;
  TenantAccounts accounts_;  // outlives what is charged
  KvStore* const store_;
  StepRunner* const runner_;
  Scheduler scheduler_;
  DocumentTable documents_;
  SharedPrompts prompts_;
  ScoringTable scorings_;
  Arrivals arrivals_;
  SlowStepWatch slow_steps_;
  Counters counters_;
  LastStep last_step_;
  AnswerLengths answer_lengths_;
  RestoreChoice restores_;
  SliceReads measured_;              // of all steps, as of the last one
  std::deque<StartedStep> started_;  // at most two, the oldest first
  std::unordered_map<RequestId, std::unique_ptr<Generation>> requests_;
  // Each request is in one of these, with the same list node from its submission to its end.
  using Requests = std::list<Generation*>;
  static bool Move(Generation* generation, Requests* from, Requests* to);
  Requests waiting_;  // in order of FairShare::TakeTurns
  Requests running_;  // in order of admission
  Requests held_back_;
  Requests returning_;  // were held back or gave way, wait for a place
  // Requests that were admitted while tokens of an upload waited for room.
  int times_uploads_passed_ = 0;
  std::unordered_map<const Sequence*, Generation*> by_sequence_;
};

}  // namespace folio
