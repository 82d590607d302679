#include "engine/sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "engine/base/catch_errors.h"

namespace folio {

int64_t Scheduler::BytesNeeded(const Sequence& sequence) const {
  const int64_t shared = sequence.prefix != nullptr ? sequence.prefix->num_in_kv : 0;
  return store_->BytesNeeded(sequence.plan, sequence.max_tokens, options_.step_tokens, shared);
}

bool Scheduler::ReserveOrEvict(int64_t bytes) {
  if (store_->Reserve(bytes)) return true;
  return evict_for_ && evict_for_(bytes) && store_->Reserve(bytes);
}

void Scheduler::MakeRoom() {
  if (running_.size() < running_.capacity()) return;
  const size_t room = 2 * running_.size() + 1;
  step_.reserve(room);
  shortest_.reserve(room);
  failures_.reserve(room);
  running_.reserve(room);  // last: its capacity stands for all
}

// What may throw comes first.
bool Scheduler::Admit(Sequence* sequence) {
  MakeRoom();
  const Sequence* prefix = sequence->prefix;
  SequenceKv kv = prefix == nullptr ? SequenceKv() : store_->Fork(prefix->kv);
  const int64_t bytes = BytesNeeded(*sequence);
  if (!ReserveOrEvict(bytes)) {
    store_->Release(&kv);
    return false;
  }
  sequence->reserved_bytes = bytes;
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
  if (!ReserveOrEvict(more)) return false;
  sequence->reserved_bytes += more;
  return true;
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
  sequence->reserved_bytes = 0;
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
}

std::vector<ScheduledTokens*>::iterator Scheduler::PutTurnsFirst() {
  for (const ScheduledTokens* part : shortest_) {
    if (part->sequence->share != nullptr) part->sequence->share->count = 0;
  }
  auto others = shortest_.begin();
  for (auto it = shortest_.begin(); it != shortest_.end(); ++it) {
    ClientShare* const client = (*it)->sequence->share;
    if (client == nullptr || client->count++ == 0) std::rotate(others++, it, it + 1);
  }
  return others;
}

void Scheduler::PlanPrefills(int budget) {
  if (budget == 0) return;
  const size_t num_decodes = step_.size();
  for (Sequence* sequence : running_) {
    if (sequence->decoding() || sequence->paused || sequence->num_pending() == 0) continue;
    step_.push_back({sequence, 0});
  }
  const auto first = step_.begin() + num_decodes;
  if (first == step_.end()) return;
  // Alone in the step, a prefill may have all of it.
  const int64_t share = step_.size() == 1 ? budget : options_.prefill_share_tokens;
  shortest_.clear();
  for (auto it = first; it != step_.end(); ++it) shortest_.push_back(&*it);
  std::stable_sort(shortest_.begin(), shortest_.end(), [](auto* a, auto* b) {
    return a->sequence->num_pending() < b->sequence->num_pending();
  });
  int score_rows = options_.score_rows;
  const auto give = [&](ScheduledTokens* part, int64_t limit) {
    const bool scores = part->sequence->scores;
    if (scores) limit = std::min<int64_t>(limit, part->num_tokens + score_rows);
    const int64_t wanted = std::min(limit, part->sequence->num_pending()) - part->num_tokens;
    const int tokens = static_cast<int>(std::clamp<int64_t>(wanted, 0, budget));
    part->num_tokens += tokens;
    budget -= tokens;
    if (scores) score_rows -= tokens;
  };
  const auto give_fairly = [&](auto begin, auto end) {
    const int64_t fair = begin == end ? 0 : std::max<int64_t>(1, budget / (end - begin));
    for (auto it = begin; it != end; ++it) give(*it, std::min(fair, share));
  };
  const auto others = PutTurnsFirst();
  give_fairly(shortest_.begin(), others);
  give_fairly(others, shortest_.end());
  for (auto it = first; it != step_.end(); ++it) give(&*it, share);
  std::erase_if(step_, [](const ScheduledTokens& part) { return part.num_tokens == 0; });
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
  PlanDecodes(&budget);
  const int64_t most = pacer_.MostPromptTokens(std::ssize(step_));
  PlanPrefills(static_cast<int>(std::min<int64_t>(budget, most)));
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
