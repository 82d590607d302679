#include "engine/sched/schedule_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace folio {
namespace {

constexpr double kNothing = 1e-9;
constexpr double kManySteps = 1e18;
// Of a token: what is less is rounding.
constexpr double kRest = 0.5;
// Ends that are no further apart than this part of the time until then are one.
constexpr double kCoarse = 1.0 / 64;
// Further away less is known of what comes: it takes no longer to look.
constexpr int kMostArrivals = 2000;
// Of ten requests of a tenant fewer came while it had others.
constexpr int kSeldom = 10;

bool AsksInTurn(const std::vector<WorkFlow>& flows, uint64_t tenant) {
  int count = 0;
  int together = 0;
  for (const WorkFlow& flow : flows) {
    if (flow.item.tenant != tenant) continue;
    count += flow.count;
    together += flow.together;
  }
  return kSeldom * together <= count;
}

}  // namespace

ScheduleSimulation::ScheduleSimulation(const WorkLoad& load, const LoadItem& asked, int exact_steps,
                                       size_t future)
    : load_(load),
      exact_steps_(exact_steps),
      random_(static_cast<std::mt19937::result_type>(future)),
      fair_share_(load.fair_share),
      pacer_(load.pacer),
      free_bytes_(load.free_bytes) {
  // Its tenant asks one after the other, as far as is known, and this is the one.
  bool comes_alone = AsksInTurn(load.flows, asked.tenant);
  for (const LoadItem& one : load.items) {
    Join(PartOf(one));
    if (asked.tenant != 0 && one.tenant == asked.tenant) comes_alone = false;
  }
  for (const WorkFlow& flow : load.flows) {
    const bool is_own = asked.tenant != 0 && flow.item.tenant == asked.tenant;
    if (!is_own || !comes_alone) sources_.push_back({&flow, Gap(flow)});
  }
  if (!load.in_step) return;
  Advance(/*most_steps=*/1);
  seconds_ = std::max(0.0, seconds_ - load.step_elapsed_seconds);
}

Forecast ScheduleSimulation::Run(const LoadItem& item, double most_seconds, Until until) {
  const std::optional<double>& goal = until == Until::kEnd ? end_seconds_ : first_token_seconds_;
  Part asked = PartOf(item);
  asked.is_asked = true;
  Join(asked);
  while (seconds_ < most_seconds && !goal.has_value()) {
    const double next = Arrive();
    Admit();
    if (!Advance(StepsUntil(next))) break;
  }
  return {.queue_seconds = queue_seconds_.value_or(most_seconds),
          .first_token_seconds = first_token_seconds_.value_or(most_seconds),
          .end_seconds = end_seconds_.value_or(most_seconds)};
}

ScheduleSimulation::Tenant* ScheduleSimulation::TenantOf(const LoadItem& item) {
  const auto known = std::find_if(tenants_.begin(), tenants_.end(), [&item](const Tenant& one) {
    return item.tenant != 0 && one.share.key == item.tenant;
  });
  if (known != tenants_.end()) return &*known;
  TenantShare& share = tenants_.emplace_back().share;
  share.key = item.tenant;
  share.weight = item.weight;
  share.served = item.served;
  share.deficit = item.deficit;
  share.last_step = item.last_step;
  return &tenants_.back();
}

ScheduleSimulation::Part ScheduleSimulation::PartOf(const LoadItem& item) {
  Part part;
  part.item = item;
  part.tenant = TenantOf(item);
  part.claim.tenant = &part.tenant->share;
  part.claim.joined = item.rank - item.work();
  return part;
}

void ScheduleSimulation::Join(const Part& part) {
  if (part.item.needs_place && (part.item.runs || part.gave_way())) ++part.tenant->share.admitted;
  if (part.item.runs) return Run(part);
  waiting_.push_back(part);
}

void ScheduleSimulation::Run(const Part& part) {
  if (part.item.needs_place) {
    ++part.tenant->places;
    ++num_places_;
  }
  running_.push_back(part);
}

void ScheduleSimulation::LeavePlace(const Part& part) {
  if (!part.item.needs_place) return;
  --part.tenant->places;
  --num_places_;
}

double ScheduleSimulation::Gap(const WorkFlow& flow) {
  return std::exponential_distribution<double>(flow.per_second)(random_);
}

double ScheduleSimulation::Arrive() {
  double next = kManySteps;
  for (Source& source : sources_) {
    for (; source.next <= seconds_ && num_arrived_ < kMostArrivals; ++num_arrived_) {
      Part part = PartOf(source.flow->item);
      part.claim.joined = part.tenant->share.served;
      waiting_.push_back(part);
      may_admit_ = true;
      source.next += Gap(*source.flow);
    }
    if (num_arrived_ < kMostArrivals) next = std::min(next, source.next);
  }
  return next;
}

// As FairShare::TakeTurns, of those that there is memory for; end: there is none. Who gave his
// place away takes no other one's.
std::vector<ScheduleSimulation::Part>::iterator ScheduleSimulation::FirstInTurn() {
  auto first = waiting_.end();
  double least = 0;
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->item.needed_bytes > free_bytes_) continue;
    if (it->gave_way() && !has_place()) continue;
    if (it->gave_way()) return it;
    const TenantShare& share = it->tenant->share;
    const double turn = (share.admitted + 1) / share.weight + it->item.handicap;
    const bool is_next =
        first == waiting_.end() || turn < least ||
        (turn == least && it->tenant == first->tenant &&
         it->claim.joined + it->item.work() < first->claim.joined + first->item.work());
    if (!is_next) continue;
    first = it;
    least = turn;
  }
  return first;
}

// As FairShare::WhoGivesWay.
bool ScheduleSimulation::MakePlace(const Part& part) {
  if (part.item.tenant == 0) return false;
  const double own = part.tenant->places;
  auto gives_way = running_.end();
  double most = 0;
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    const Tenant& other = *it->tenant;
    const double places = other.places / other.share.weight;
    const bool has_too_many =
        other.places > 1 && (own == 0 || (other.places - 1) / other.share.weight >=
                                             (own + 1) / part.tenant->share.weight);
    if (!it->item.needs_place || !has_too_many || places < most) continue;
    most = places;
    gives_way = it;
  }
  if (gives_way == running_.end()) return false;
  Part left = *gives_way;
  left.item.needed_bytes = 0;  // it keeps them
  left.item.handicap = LoadItem::kFirst;
  LeavePlace(left);
  running_.erase(gives_way);
  waiting_.push_back(left);
  return true;
}

void ScheduleSimulation::Admit() {
  if (!std::exchange(may_admit_, false)) return;
  for (auto first = FirstInTurn(); first != waiting_.end(); first = FirstInTurn()) {
    Part part = *first;
    const auto at = first - waiting_.begin();
    if (part.item.needs_place && !has_place() && !MakePlace(part)) return;
    waiting_.erase(waiting_.begin() + at);
    free_bytes_ -= part.item.needed_bytes;
    if (part.is_asked && !queue_seconds_.has_value()) queue_seconds_ = seconds_;
    if (part.item.needs_place && !part.gave_way()) ++part.tenant->share.admitted;
    Run(part);
  }
}

StepLoad ScheduleSimulation::Answers() const {
  StepLoad step;
  for (const Part& part : running_) {
    if (!part.answers()) continue;
    ++step.answers;
    step.answer_work += part.item.answer_work;
  }
  return step;
}

double ScheduleSimulation::AnswerWork(const Part& part, double num_answers) const {
  return part.item.answer_work + load_.weights_work / std::max(1.0, num_answers);
}

int64_t ScheduleSimulation::MostPromptTokens(double num_answers, double answers_seconds) const {
  const auto answers = static_cast<int64_t>(num_answers);
  return plans_exactly() ? pacer_.MostPromptTokens(answers)
                         : pacer_.UsualPromptTokens(answers, answers_seconds);
}

// Of one prompt in a step.
double ScheduleSimulation::MostTokens(double budget) const {
  return running_.size() == 1 ? budget : load_.prefill_share_tokens;
}

void ScheduleSimulation::ShareOut(const StepLoad& answers, double budget) {
  std::vector<Part*> prompts;
  for (Part& part : running_) {
    part.per_step = part.answers() ? 1 : 0;
    if (!part.answers()) prompts.push_back(&part);
  }
  if (plans_exactly()) {
    ShareOutExactly(answers.answers, &prompts, static_cast<int64_t>(budget));
  } else if (!prompts.empty() && budget > 0) {
    ShareOutEvenly(answers.answers, &prompts, budget);
  }
}

void ScheduleSimulation::ShareOutExactly(double num_answers, std::vector<Part*>* prompts,
                                         int64_t budget) {
  fair_share_.BeginStep();
  for (Part& part : running_) {
    if (part.answers()) fair_share_.Charge(&part.claim, AnswerWork(part, num_answers));
  }
  if (prompts->empty() || budget <= 0) return;
  claims_.clear();
  for (Part* part : *prompts) {
    part->claim.remaining = part->item.work();
    part->claim.cost = part->item.next_token_work();
    part->claim.part = std::ssize(claims_);
    claims_.push_back(&part->claim);
  }
  const auto share = static_cast<int64_t>(MostTokens(static_cast<double>(budget)));
  const double most_work = FairShare::WorkFor(claims_, budget);
  fair_share_.Distribute(claims_, budget, most_work, [&](Claim* claim, int64_t most) {
    Part& part = *(*prompts)[static_cast<size_t>(claim->part)];
    const auto had = static_cast<int64_t>(part.per_step);
    const auto left = static_cast<int64_t>(std::ceil(part.item.prompt_tokens));
    const int64_t more = std::max<int64_t>(0, std::min({had + most, share, left}) - had);
    part.per_step += static_cast<double>(more);
    return more;
  });
}

// In rounds as FairShare, from nothing that is owed: what all the steps have that one simulated
// stands for, as prompts end meanwhile, and others are read then.
void ScheduleSimulation::ShareOutEvenly(double num_answers, std::vector<Part*>* prompts,
                                        double budget) {
  const double steps = LeastSteps();
  for (Tenant& one : tenants_) one.owed = one.round = 0;
  for (const Part& part : running_) {
    if (part.answers()) part.tenant->owed -= steps * AnswerWork(part, num_answers);
  }
  claims_.clear();
  for (Part* part : *prompts) {
    part->claim.remaining = part->item.work();
    part->claim.cost = part->item.next_token_work();
    claims_.push_back(&part->claim);
  }
  std::stable_sort(prompts->begin(), prompts->end(),
                   [](const Part* a, const Part* b) { return a->claim.rank() < b->claim.rank(); });
  const double most = steps * MostTokens(budget);
  budget *= steps;
  double work = FairShare::WorkFor(claims_, std::max<int64_t>(1, std::llround(budget)));
  const auto wants = [most](const Part& part) {
    return std::min(most, part.item.prompt_tokens) - part.per_step;
  };
  for (int round = 1; round == 1 || (budget > kRest && work > kRest); ++round) {
    double weights = 0;
    double tokens = 0;         // for work of 1 for each weight of 1
    double lift = kManySteps;  // until the first one is owed
    for (Part* part : *prompts) {
      Tenant& one = *part->tenant;
      if (wants(*part) < kNothing || one.round == round) continue;
      weights += one.share.weight;
      tokens += one.share.weight / part->claim.cost;
      one.round = round;
      lift = std::min(lift, -one.owed / one.share.weight);
    }
    if (weights == 0) break;
    const double each = std::max(lift, 0.0) + std::min(budget / tokens, work / weights);
    for (Tenant& one : tenants_) one.owed += one.round == round ? each * one.share.weight : 0;
    for (Part* part : *prompts) {
      if (part->tenant->owed <= 0) continue;
      const double cost = part->claim.cost;
      const double given = std::min({part->tenant->owed / cost, wants(*part), budget});
      part->per_step += given;
      part->tenant->owed -= given * cost;
      work -= given * cost;
      budget -= given;
    }
  }
  for (Part* part : *prompts) part->per_step /= steps;
}

double ScheduleSimulation::StepsUntil(double next) const {
  const double step = load_.rates.Seconds(Answers()) + kNothing;
  const double steps = (next - seconds_) / std::max(step, last_step_seconds_);
  return std::max(steps, LeastSteps());
}

// The further away, the coarser.
double ScheduleSimulation::LeastSteps() const {
  return plans_exactly() ? 1 : std::max(1.0, kCoarse * num_steps_);
}

double ScheduleSimulation::StepsAlike() const {
  double steps = 0;
  for (const Part& part : running_) {
    if (part.per_step < kNothing) continue;
    const double own = std::max(1.0, part.left() / part.per_step);
    steps = steps == 0 ? own : std::min(steps, own);
  }
  if (steps == 0 || plans_exactly()) return std::min(1.0, steps);
  return std::max(steps, LeastSteps());
}

bool ScheduleSimulation::Advance(double most_steps) {
  ++num_simulated_;
  StepLoad step = Answers();
  const double num_answers = step.answers;
  const int64_t most = MostPromptTokens(num_answers, load_.rates.Seconds(step));
  ShareOut(step, std::min(load_.step_tokens - num_answers, static_cast<double>(most)));
  const double steps = std::min(StepsAlike(), most_steps);
  if (steps == 0) return false;
  for (const Part& part : running_) {
    if (part.answers()) continue;
    step.prompts += std::min(1.0, part.per_step);
    step.prompt_tokens += part.per_step;
    step.prompt_work += part.item.WorkOfNext(steps * part.per_step) / steps;
  }
  num_steps_ += steps;
  last_step_seconds_ = load_.rates.Seconds(step);
  seconds_ += steps * last_step_seconds_;
  if (plans_exactly()) {
    pacer_.Note({.num_answers = static_cast<int64_t>(num_answers),
                 .prompt_tokens = static_cast<int64_t>(step.prompt_tokens)},
                last_step_seconds_);
  }
  for (Part& part : running_) GoOn(steps * part.per_step, num_answers, &part);
  EndAnswers();
  return true;
}

void ScheduleSimulation::GoOn(double tokens, double num_answers, Part* part) {
  // FairShare has counted it already where it has shared the step out.
  double* const served = plans_exactly() ? nullptr : &part->tenant->share.served;
  LoadItem& item = part->item;
  if (part->answers()) {
    if (served != nullptr) *served += tokens * AnswerWork(*part, num_answers);
    item.answer_tokens -= tokens;
    return;
  }
  if (served != nullptr) *served += item.WorkOfNext(tokens);
  item.TakeTokens(tokens);
  if (item.prompt_tokens >= kRest) return;
  item.prompt_tokens = 0;
  item.answer_tokens -= 1;  // it is drawn in the step that ends its prompt
  if (part->is_asked) first_token_seconds_ = seconds_;
}

void ScheduleSimulation::EndAnswers() {
  std::erase_if(running_, [this](const Part& part) {
    const bool ended = part.answers() && part.item.answer_tokens < kNothing;
    if (!ended) return false;
    if (part.is_asked) end_seconds_ = seconds_;
    may_admit_ = true;
    free_bytes_ += part.item.needed_bytes;
    LeavePlace(part);
    if (part.item.needs_place) --part.tenant->share.admitted;
    return true;
  });
}

}  // namespace folio
