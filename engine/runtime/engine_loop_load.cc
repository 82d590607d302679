// What the loop says of its work: for forecasts, and for requests with deadlines.
#include <algorithm>

#include "engine/runtime/engine_loop.h"

namespace folio {

double EngineLoop::AnswerLeft(const Generation& generation) const {
  const Sequence& sequence = generation.sequence;
  const auto had =
      static_cast<double>(std::max<int64_t>(0, sequence.num_known - sequence.num_prompt));
  return std::max(1.0, answer_lengths_.Expected(generation.spec.stop) - had);
}

// It is looked at before each step: of one that waits for a document alone it may have changed.
double EngineLoop::WorkLeft(const Generation& generation) const {
  const Sequence& sequence = generation.sequence;
  return sequence.prefix == nullptr ? sequence.claim.remaining : scheduler_.WorkLeft(sequence);
}

int EngineLoop::num_waiting_for(Generation::Wait what) const {
  return static_cast<int>(std::count_if(
      waiting_.begin(), waiting_.end(),
      [what](const Generation* generation) { return generation->awaited() == what; }));
}

int EngineLoop::num_answering() const {
  return static_cast<int>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Generation* generation) { return generation->sequence.decoding(); }));
}

double EngineLoop::PrefillTokenSeconds() const {
  const double work = scheduler_.rates().AsLately(0, 1).prompt_work;
  return scheduler_.UsualSeconds(1, work, 0, num_answering());
}

// Those that run, too: what is left of their prompts is not read before that of others.
void EngineLoop::FindLate(SteadyTime now) {
  const int answers = num_answering() + 1;  // with its own
  const auto judge = [&](Generation* generation) {
    const std::optional<SteadyTime>& deadline = generation->spec.deadline;
    if (!deadline.has_value() || generation->awaits_document) return;
    const std::chrono::duration<double> left = *deadline - now;
    const Sequence& sequence = generation->sequence;
    const bool reads = !sequence.decoding();
    const auto tokens =
        static_cast<double>(reads ? sequence.num_known - Scheduler::BeginOfPrefill(sequence) : 0);
    generation->claim().late =
        left.count() < scheduler_.UsualSeconds(tokens, reads ? WorkLeft(*generation) : 0,
                                               AnswerLeft(*generation), answers);
  };
  std::for_each(waiting_.begin(), waiting_.end(), judge);
  std::for_each(running_.begin(), running_.end(), judge);
}

LoadItem EngineLoop::Describe(const Generation& generation) const {
  LoadItem item = scheduler_.Describe(generation.sequence);
  const SharedPrompt* const prompt = generation.shared_prompt;
  // What of a prompt is computed apart is an item of its own, once it is begun.
  if (!generation.admitted && prompt != nullptr &&
      (prompt->admitted || prompt->IsFoundBy(generation))) {
    item.prompt_tokens = 1;
  }
  item.answer_tokens = AnswerLeft(generation);
  item.runs = generation.admitted && !generation.sequence.paused;
  // One that gave its place away keeps its cache, and comes first.
  if (generation.admitted && !item.runs) item.handicap = LoadItem::kFirst;
  item.needed_bytes = generation.admitted          ? generation.sequence.reserved_bytes
                      : generation.awaits_document ? 0
                                                   : BytesLacking(generation);
  return item;
}

void EngineLoop::Describe(WorkLoad* load) const {
  scheduler_.Describe(load);
  load->free_bytes += documents_.evictable_bytes();
  load->max_running_requests = options_.max_running_requests;
  load->answers = answer_lengths_;
  arrivals_.Describe(options_.clock(), &load->flows);
  load->items.clear();
  for (const Generation* generation : running_) load->items.push_back(Describe(*generation));
  // Documents and streams have no place.
  for (const Sequence* sequence : scheduler_.running()) {
    if (sequence->generates || sequence->paused || sequence->num_pending() == 0) continue;
    LoadItem item = scheduler_.Describe(*sequence);
    item.runs = true;
    item.needs_place = false;
    load->items.push_back(item);
  }
  for (const Generation* generation : returning_) {
    LoadItem item = Describe(*generation);
    item.needed_bytes = 0;
    load->items.push_back(item);
  }
  for (const Generation* generation : waiting_) load->items.push_back(Describe(*generation));
}

}  // namespace folio
