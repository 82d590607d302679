#include "engine/sched/scheduler.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "engine/base/catch_errors.h"

namespace folio {
namespace {

int64_t CostOf(const Sequence& sequence, int64_t num_tokens, int64_t chunk_tokens) {
  return num_tokens + chunk_tokens * sequence.ChunksCompleted(num_tokens);
}

// The most of the next `num_tokens` tokens whose cost is within the budget.
int64_t MostWithin(const Sequence& sequence, int64_t num_tokens, int64_t chunk_tokens,
                   int64_t budget) {
  num_tokens = std::clamp<int64_t>(num_tokens, 0, budget);
  while (CostOf(sequence, num_tokens, chunk_tokens) > budget) {
    const int64_t chunks = sequence.ChunksCompleted(num_tokens);
    const int64_t w = sequence.plan.selection.chunk_tokens;
    const int64_t before_last = (sequence.num_in_kv / w + chunks) * w - 1 - sequence.num_in_kv;
    num_tokens = std::max(before_last, budget - chunks * chunk_tokens);
  }
  return num_tokens;
}

}  // namespace

int64_t Scheduler::BytesNeeded(const Sequence& sequence) const {
  const int64_t shared = sequence.prefix != nullptr ? sequence.prefix->num_known : 0;
  return store_->BytesNeeded(sequence.plan, sequence.max_tokens, options_.step_tokens, shared);
}

bool Scheduler::ReserveOrEvict(Sequence* sequence, int64_t bytes) {
  if (!sequence->leaves_for_others && !sequence->claim.share().MayReserve(bytes)) return false;
  if (store_->Reserve(bytes)) return true;
  return evict_for_ && evict_for_(bytes) && store_->Reserve(bytes);
}

void Scheduler::MakeRoom() {
  if (running_.size() < running_.capacity()) return;
  const size_t room = 2 * running_.size() + 1;
  step_.reserve(room);
  claims_.reserve(room);
  failures_.reserve(room);
  running_.reserve(room);  // last: its capacity stands for all
}

// What may throw comes first.
bool Scheduler::Admit(Sequence* sequence) {
  MakeRoom();
  const Sequence* prefix = sequence->prefix;
  SequenceKv kv = prefix == nullptr ? SequenceKv() : store_->Fork(prefix->kv);
  const int64_t bytes = BytesNeeded(*sequence);
  if (!ReserveOrEvict(sequence, bytes)) {
    store_->Release(&kv);
    return false;
  }
  ChangeReservation(sequence, bytes);
  if (prefix != nullptr) {
    sequence->kv = std::move(kv);
    sequence->num_in_kv = prefix->num_in_kv;
  }
  running_.push_back(sequence);
  return true;
}

bool Scheduler::Grow(Sequence* sequence) {
  const int64_t more = BytesNeeded(*sequence) - sequence->reserved_bytes;
  if (more <= 0) return true;
  if (!ReserveOrEvict(sequence, more)) return false;
  ChangeReservation(sequence, more);
  return true;
}

void Scheduler::ChangeReservation(Sequence* sequence, int64_t bytes) {
  sequence->reserved_bytes += bytes;
  if (sequence->leaves_for_others) return;
  const std::atomic_ref reserved(sequence->claim.share().reserved_bytes);
  reserved.fetch_add(bytes, std::memory_order_relaxed);
}

void Scheduler::BeginAgain(Sequence* sequence) {
  if (std::find(running_.begin(), running_.end(), sequence) == running_.end()) {
    MakeRoom();
    running_.push_back(sequence);
  }
  store_->Release(&sequence->kv);
  sequence->num_in_kv = 0;
}

void Scheduler::Remove(Sequence* sequence) {
  Retire(sequence);
  store_->Release(&sequence->kv);
  store_->Unreserve(sequence->reserved_bytes);
  ChangeReservation(sequence, -sequence->reserved_bytes);
}

double Scheduler::WorkOf(const ScheduledTokens& part) const {
  const Sequence& sequence = *part.sequence;
  const int64_t begin = sequence.num_in_kv;
  return sequence.decoding()
             ? 0
             : options_.costs.OfPrompt(sequence.plan, begin, begin + part.num_tokens);
}

double Scheduler::WorkOfAnswer(const ScheduledTokens& part) const {
  const Sequence& sequence = *part.sequence;
  return sequence.decoding() ? options_.costs.OfAnswerBeside(sequence.plan, sequence.num_known) : 0;
}

int64_t Scheduler::BeginOfPrefill(const Sequence& sequence) {
  const bool forks = sequence.prefix != nullptr && sequence.num_in_kv == 0;
  return forks ? sequence.prefix->num_in_kv : sequence.num_in_kv;
}

double Scheduler::WorkLeft(const Sequence& sequence) const {
  return options_.costs.OfPrompt(sequence.plan, BeginOfPrefill(sequence), sequence.num_known);
}

void Scheduler::Retire(Sequence* sequence) { std::erase(running_, sequence); }

void Scheduler::PlanDecodes(int* budget) {
  for (Sequence* sequence : running_) {
    if (!sequence->decoding() || sequence->paused || *budget == 0) continue;
    if (sequence->num_pending() == 0) continue;
    if (sequence->num_known >= sequence->max_tokens) continue;  // its last token is on its way
    step_.push_back({sequence, 1});
    --*budget;
  }
  for (const ScheduledTokens& part : step_) {
    Sequence& sequence = *part.sequence;
    shares_.Charge(&sequence.claim,
                   options_.costs.OfAnswer(sequence.plan, sequence.num_in_kv, std::ssize(step_)));
  }
}

// The oldest that has but one token left of its chunk: it may be worth more than any step has.
void Scheduler::CompleteOneChunk(std::vector<ScheduledTokens>::iterator first, int64_t chunk_tokens,
                                 int64_t* budget) {
  const auto at = std::find_if(first, step_.end(), [](const ScheduledTokens& part) {
    return part.sequence->ChunksCompleted(1) > 0;
  });
  if (at == step_.end()) return;
  at->num_tokens = 1;
  shares_.Charge(&at->sequence->claim,
                 options_.costs.OfPromptToken(at->sequence->plan, at->sequence->num_in_kv));
  *budget = std::max<int64_t>(0, *budget - CostOf(*at->sequence, 1, chunk_tokens));
}

void Scheduler::PlanPrefills(int64_t budget, int64_t chunk_tokens) {
  if (budget == 0) return;
  const auto num_decodes = std::ssize(step_);
  for (Sequence* sequence : running_) {
    if (sequence->decoding() || sequence->paused || sequence->num_pending() == 0) continue;
    step_.push_back({sequence, 0});
  }
  const auto first = step_.begin() + num_decodes;
  if (first == step_.end()) return;
  // Alone in the step, a prefill may have all of it.
  const int64_t share = step_.size() == 1 ? budget : options_.prefill_share_tokens;
  if (chunk_tokens > 0) CompleteOneChunk(first, chunk_tokens, &budget);
  int64_t score_rows = options_.score_rows;
  claims_.clear();
  for (auto it = first; it != step_.end(); ++it) {
    Sequence& sequence = *it->sequence;
    sequence.claim.remaining = WorkLeft(sequence);
    sequence.claim.cost = options_.costs.OfPromptToken(sequence.plan, sequence.num_in_kv);
    sequence.claim.part = it - step_.begin();
    claims_.push_back(&sequence.claim);
    // The token that completes a chunk may be one of them.
    if (sequence.scores) score_rows -= it->num_tokens;
  }
  const double most_work = FairShare::WorkFor(claims_, budget);
  shares_.Distribute(claims_, budget, most_work, [&](Claim* claim, int64_t most) {
    ScheduledTokens& part = step_[claim->part];
    const Sequence& sequence = *part.sequence;
    int64_t limit = std::min({part.num_tokens + most, share, sequence.num_pending()});
    if (sequence.scores) limit = std::min(limit, part.num_tokens + score_rows);
    const int64_t had = CostOf(sequence, part.num_tokens, chunk_tokens);
    const int64_t tokens = MostWithin(sequence, limit, chunk_tokens, budget + had);
    const int64_t more = std::max<int64_t>(0, tokens - part.num_tokens);
    part.num_tokens += static_cast<int>(more);
    const int64_t taken = CostOf(sequence, part.num_tokens, chunk_tokens) - had;
    budget -= taken;
    if (sequence.scores) score_rows -= more;
    return taken;
  });
  std::erase_if(step_, [](const ScheduledTokens& part) { return part.num_tokens == 0; });
}

void Scheduler::Describe(WorkLoad* load) const {
  load->rates = rates_;
  load->weights_work = options_.costs.weights;
  load->pacer = pacer_;
  load->fair_share = shares_;
  load->step_tokens = options_.step_tokens;
  load->prefill_share_tokens = options_.prefill_share_tokens;
  load->free_bytes = store_->capacity_bytes() - store_->reserved_bytes();
}

LoadItem Scheduler::Describe(const Sequence& sequence) const {
  const Claim& claim = sequence.claim;
  const int64_t begin = BeginOfPrefill(sequence);
  LoadItem item;
  item.tenant = claim.share().key;
  item.weight = claim.share().weight;
  item.served = claim.share().served;
  item.deficit = claim.share().deficit;
  item.last_step = claim.share().last_step;
  item.rank = claim.rank();
  item.handicap = claim.handicap;
  item.answer_work = options_.costs.OfAnswerBeside(sequence.plan, sequence.num_known);
  if (sequence.decoding() || sequence.num_known <= begin) return item;
  item.prompt_tokens = static_cast<double>(sequence.num_known - begin);
  item.SetWork(WorkLeft(sequence), options_.costs.OfPromptToken(sequence.plan, begin));
  return item;
}

double Scheduler::UsualSeconds(double prompt_tokens, double prompt_work, double answer_tokens,
                               int num_answers) const {
  if (!rates_.known()) return 0;
  const int64_t answers = std::max(1, num_answers);
  const auto beside = static_cast<double>(answers);
  // Of all prompts in a step, and of one of them.
  const double alone = rates_.Seconds(rates_.AsLately(beside, 0));
  const auto all = static_cast<double>(
      std::clamp<int64_t>(pacer_.UsualPromptTokens(answers, alone), 1,
                          std::max<int64_t>(1, options_.step_tokens - answers)));
  const double own = std::min<double>(options_.prefill_share_tokens, all);
  const double step = rates_.Seconds(rates_.AsLately(beside, all));
  if (prompt_tokens <= 0) return answer_tokens * step;
  StepLoad of_prompt = rates_.AsLately(beside, own);
  of_prompt.prompt_work = own * prompt_work / prompt_tokens;
  of_prompt.prompts = 1;
  return prompt_tokens / own * rates_.Seconds(of_prompt) + answer_tokens * step;
}

bool Scheduler::HasWorkBeside(const Sequence* one) const {
  return std::any_of(running_.begin(), running_.end(), [one](const Sequence* sequence) {
    return sequence != one && !sequence->paused && sequence->num_pending() > 0;
  });
}

absl::Status Scheduler::Provide(const ScheduledTokens& part, bool first) {
  Sequence* sequence = part.sequence;
  return StatusOf([&] {
    const absl::Status status =
        store_->Extend(sequence->plan, sequence->num_in_kv, part.num_tokens, &sequence->kv);
    return status.ok() && reserve_ ? reserve_(part, first) : status;
  });
}

const std::vector<ScheduledTokens>& Scheduler::NextStep() {
  step_.clear();
  failures_.clear();
  int budget = options_.step_tokens;
  shares_.BeginStep();
  PlanDecodes(&budget);
  const int64_t most = pacer_.MostPromptTokens(std::ssize(step_));
  PlanPrefills(std::min<int64_t>(budget, most), most < budget ? pacer_.ChunkTokens() : 0);
  bool first = true;
  for (ScheduledTokens& part : step_) {
    if (absl::Status status = Provide(part, first); !status.ok()) {
      failures_.push_back({part.sequence, std::move(status)});
      part.num_tokens = 0;
    } else {
      first = false;
    }
    part.sequence->num_scheduled = part.num_tokens;
  }
  std::erase_if(step_, [](const ScheduledTokens& part) { return part.num_tokens == 0; });
  return step_;
}

void Scheduler::Commit(const std::vector<ScheduledTokens>& step) {
  store_->EndStep();
  for (const ScheduledTokens& part : step) {
    Sequence* sequence = part.sequence;
    sequence->num_in_kv += part.num_tokens;
    sequence->num_scheduled = 0;
    store_->Trim(sequence->plan, sequence->num_in_kv, &sequence->kv);
    store_->Seal(sequence->plan, sequence->num_in_kv, &sequence->kv);
  }
}

}  // namespace folio
