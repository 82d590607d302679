#include "engine/sched/forecast.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/sched/fair_share.h"

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

class Course {
 public:
  Course(const WorkLoad& load, const LoadItem& asked) : load_(load), free_bytes_(load.free_bytes) {
    bool comes_alone = true;
    for (const LoadItem& one : load.items) {
      Join({one});
      if (asked.tenant != 0 && one.tenant == asked.tenant) comes_alone = false;
    }
    for (const WorkFlow& flow : load.flows) {
      const bool is_own = asked.tenant != 0 && flow.item.tenant == asked.tenant;
      if (!is_own || !comes_alone) AddSource(flow);
    }
    if (!load.in_step) return;
    Advance(/*most_steps=*/1);
    seconds_ = std::max(0.0, seconds_ - load.step_elapsed_seconds);
  }

  Forecast Run(const LoadItem& item, double most_seconds) {
    Join({item, /*is_asked=*/true});
    while (seconds_ < most_seconds) {
      const double next = Arrive();
      Admit();
      if (!Advance(StepsUntil(next))) break;
      if (answered_) return {queue_seconds_.value_or(0), seconds_};
    }
    return {queue_seconds_.value_or(most_seconds), most_seconds};
  }

 private:
  struct Tenant {
    uint64_t key = 0;
    double weight = 1;
    double served = 0;  // since the start of all, as TenantShare::served
    int places = 0;
    int admitted = 0;  // with those that gave their places away for now
    // Of the step that is being shared out; the last round in which it wanted more.
    double asked = 0;
    double owed = 0;
    int round = 0;
  };
  struct Part {
    LoadItem item;
    bool is_asked = false;
    size_t tenant = 0;  // of tenants_
    double per_step = 0;

    bool gave_way() const { return item.handicap <= LoadItem::kFirst; }
    bool answers() const { return item.prompt_tokens < kNothing; }
    double left() const { return answers() ? item.answer_tokens : item.prompt_tokens; }
  };
  // Where requests come from.
  struct Source {
    const WorkFlow* flow;
    double next;  // when the next one comes
  };

  size_t TenantOf(const LoadItem& item) {
    const auto known = std::find_if(tenants_.begin(), tenants_.end(), [&item](const Tenant& one) {
      return item.tenant != 0 && one.key == item.tenant;
    });
    if (known != tenants_.end()) return static_cast<size_t>(known - tenants_.begin());
    tenants_.push_back({item.tenant, item.weight, item.served});
    return tenants_.size() - 1;
  }
  Tenant& tenant(const Part& part) { return tenants_[part.tenant]; }

  void Join(Part part) {
    part.tenant = TenantOf(part.item);
    if (part.item.needs_place && (part.item.runs || part.gave_way())) ++tenant(part).admitted;
    if (part.item.runs) return Run(part);
    waiting_.push_back(part);
  }

  void Run(const Part& part) {
    if (part.item.needs_place) {
      ++tenant(part).places;
      ++num_places_;
    }
    running_.push_back(part);
  }

  void LeavePlace(const Part& part) {
    if (!part.item.needs_place) return;
    --tenant(part).places;
    --num_places_;
  }

  // They come evenly, each source at a time of its own. Those that came during the step that runs
  // are not in the load yet.
  void AddSource(const WorkFlow& flow) {
    constexpr double kGoldenRatio = 0.6180339887498949;
    const double phase = std::fmod(0.5 + kGoldenRatio * static_cast<double>(sources_.size()), 1);
    const double begin = load_.in_step ? -load_.step_elapsed_seconds : 0;
    sources_.push_back({&flow, begin + phase / flow.per_second});
  }

  // Those that have come by now wait; returns when the next one comes.
  double Arrive() {
    double next = kManySteps;
    for (Source& source : sources_) {
      for (; source.next <= seconds_ && num_arrived_ < kMostArrivals; ++num_arrived_) {
        Part part{source.flow->item};
        part.tenant = TenantOf(part.item);
        part.item.rank = tenant(part).served + part.item.work();
        waiting_.push_back(part);
        source.next += 1 / source.flow->per_second;
      }
      if (num_arrived_ < kMostArrivals) next = std::min(next, source.next);
    }
    return next;
  }

  bool has_place() const { return num_places_ < load_.max_running_requests; }

  // As FairShare::TakeTurns, of those that there is memory for; end: there is none. Who gave his
  // place away takes no other one's.
  std::vector<Part>::iterator FirstInTurn() {
    auto first = waiting_.end();
    double least = 0;
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->item.needed_bytes > free_bytes_) continue;
      if (it->gave_way() && !has_place()) continue;
      if (it->gave_way()) return it;
      const double turn = (tenant(*it).admitted + 1) / it->item.weight + it->item.handicap;
      const bool is_next =
          first == waiting_.end() || turn < least ||
          (turn == least && it->tenant == first->tenant && it->item.rank < first->item.rank);
      if (!is_next) continue;
      first = it;
      least = turn;
    }
    return first;
  }

  // As FairShare::WhoGivesWay.
  bool MakePlace(const Part& part) {
    if (part.item.tenant == 0) return false;
    const double own = tenant(part).places;
    auto gives_way = running_.end();
    double most = 0;
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      const Tenant& other = tenant(*it);
      const double places = other.places / other.weight;
      const bool has_too_many =
          other.places > 1 &&
          (own == 0 || (other.places - 1) / other.weight >= (own + 1) / part.item.weight);
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

  void Admit() {
    for (auto first = FirstInTurn(); first != waiting_.end(); first = FirstInTurn()) {
      Part part = *first;
      const auto at = first - waiting_.begin();
      if (part.item.needs_place && !has_place() && !MakePlace(part)) return;
      waiting_.erase(waiting_.begin() + at);
      free_bytes_ -= part.item.needed_bytes;
      if (part.is_asked && !queue_seconds_.has_value()) queue_seconds_ = seconds_;
      if (part.item.needs_place && !part.gave_way()) ++tenant(part).admitted;
      Run(part);
    }
  }

  // As FairShare::StepFor: the work of a step.
  double MostWork(const std::vector<Part*>& prompts, double all) {
    double weights = 0;
    for (Part* part : prompts) tenant(*part).asked = 0;
    for (Part* part : prompts) {
      Tenant& one = tenant(*part);
      if (one.asked == 0) weights += one.weight;
      one.asked += part->item.work();
    }
    double level = 0;
    for (Part* part : prompts) {
      const double asked = tenant(*part).asked / tenant(*part).weight;
      if (asked * weights <= all) level = std::max(level, asked);
    }
    return level == 0 ? kManySteps : level * weights;
  }

  double AnswerWork(const Part& part) const {
    return part.item.answer_work + load_.weights_work / std::max(1.0, num_answers());
  }
  void ChargeAnswers() {
    for (Tenant& one : tenants_) {
      one.owed = 0;
      one.round = 0;
    }
    for (const Part& part : running_) {
      if (part.answers()) tenant(part).owed -= AnswerWork(part);
    }
  }

  // Gives each prompt its tokens of a step, in rounds as FairShare; returns their work.
  double ShareOut(double budget) {
    std::vector<Part*> prompts;
    double least_work = kManySteps;
    for (Part& part : running_) {
      part.per_step = part.answers() ? 1 : 0;
      if (part.answers()) continue;
      prompts.push_back(&part);
      least_work = std::min(least_work, part.item.token_work);
    }
    if (prompts.empty() || budget <= 0) return 0;
    std::stable_sort(prompts.begin(), prompts.end(),
                     [](const Part* a, const Part* b) { return a->item.rank < b->item.rank; });
    const double most = running_.size() == 1 ? budget : load_.prefill_share_tokens;
    const double most_work = MostWork(prompts, budget * least_work);
    double work = 0;
    ChargeAnswers();
    const auto has_more = [&] { return budget > kRest && most_work - work > kRest; };
    for (int round = 1; round == 1 || has_more(); ++round) {
      double weights = 0;
      double tokens = 0;  // for work of 1 for each weight of 1
      for (Part* part : prompts) {
        Tenant& one = tenant(*part);
        if (Wants(*part, most) < kNothing || one.round == round) continue;
        weights += one.weight;
        tokens += one.weight / part->item.token_work;
        one.round = round;
      }
      if (weights == 0) break;
      const double each = std::min(budget / tokens, (most_work - work) / weights);
      for (Tenant& one : tenants_) one.owed += one.round == round ? each * one.weight : 0;
      for (Part* part : prompts) {
        Tenant& one = tenant(*part);
        if (one.owed <= 0) continue;
        const double given =
            std::min({one.owed / part->item.token_work, Wants(*part, most), budget});
        part->per_step += given;
        one.owed -= given * part->item.token_work;
        work += given * part->item.token_work;
        budget -= given;
      }
    }
    return work;
  }
  static double Wants(const Part& part, double most) {
    return std::min(most, part.item.prompt_tokens) - part.per_step;
  }

  double num_answers() const {
    return static_cast<double>(std::count_if(running_.begin(), running_.end(),
                                             [](const Part& one) { return one.answers(); }));
  }
  double StepsUntil(double next) const {
    const double step = load_.rates.Seconds(num_answers(), 0) + kNothing;
    const double steps = (next - seconds_) / std::max(step, last_step_seconds_);
    return std::max({1.0, steps, kCoarse * num_steps_});
  }

  // To the next end of a prompt or an answer; false if nothing runs.
  bool Advance(double most_steps) {
    const auto answers = num_answers();
    const double alone = load_.rates.Seconds(answers, 0);
    const double budget = std::min<double>(
        load_.step_tokens - answers,
        static_cast<double>(load_.pacer.UsualPromptTokens(static_cast<int64_t>(answers), alone)));
    const double work = ShareOut(budget);
    double steps = 0;
    for (const Part& part : running_) {
      if (part.per_step < kNothing) continue;
      const double own = std::max(1.0, part.left() / part.per_step);
      steps = steps == 0 ? own : std::min(steps, own);
    }
    if (steps == 0) return false;
    // The further away, the coarser.
    steps = std::min(std::max(steps, kCoarse * num_steps_), most_steps);
    num_steps_ += steps;
    last_step_seconds_ = load_.rates.Seconds(answers, work);
    seconds_ += steps * last_step_seconds_;
    for (Part& part : running_) GoOn(steps * part.per_step, &part);
    std::erase_if(running_, [this](const Part& part) {
      const bool ended = part.answers() && part.item.answer_tokens < kNothing;
      if (!ended) return false;
      free_bytes_ += part.item.needed_bytes;
      LeavePlace(part);
      if (part.item.needs_place) --tenant(part).admitted;
      return true;
    });
    return true;
  }

  void GoOn(double tokens, Part* part) {
    if (part->answers()) {
      tenant(*part).served += tokens * AnswerWork(*part);
      part->item.answer_tokens -= tokens;
      return;
    }
    tenant(*part).served += tokens * part->item.token_work;
    part->item.rank -= tokens * part->item.token_work;  // it has the less left
    part->item.prompt_tokens -= std::min(tokens, part->item.prompt_tokens);
    if (part->item.prompt_tokens >= kRest) return;
    part->item.prompt_tokens = 0;
    part->item.answer_tokens -= 1;  // it is drawn in the step that ends its prompt
    answered_ = answered_ || part->is_asked;
  }

  const WorkLoad& load_;
  std::vector<Tenant> tenants_;
  std::vector<Source> sources_;
  std::vector<Part> running_;
  std::vector<Part> waiting_;
  int num_places_ = 0;
  int num_arrived_ = 0;
  double num_steps_ = 0;
  int64_t free_bytes_;
  double seconds_ = 0;
  double last_step_seconds_ = 0;
  std::optional<double> queue_seconds_;
  bool answered_ = false;
};

}  // namespace

LoadItem NewItem(const WorkCosts& costs, const AttentionPlan& plan,
                 const std::pair<int64_t, int64_t>& tokens, const Payer& payer,
                 const WorkLoad& load) {
  const auto& [begin, end] = tokens;
  Claim claim;
  claim.priority = payer.priority;
  claim.remaining = costs.OfPrompt(plan, begin, end);
  LoadItem item;
  item.prompt_tokens = static_cast<double>(end - begin);
  if (end > begin) item.token_work = claim.remaining / item.prompt_tokens;
  item.answer_work = costs.OfAnswerBeside(plan, end);
  if (payer.tenant != nullptr) {
    item.tenant = KeyOf(*payer.tenant);
    item.weight = payer.tenant->weight;
  }
  for (const LoadItem& other : load.items) {
    if (item.tenant != 0 && other.tenant == item.tenant) item.served = other.served;
  }
  item.rank = item.served + claim.rank();
  return item;
}

std::optional<Forecast> Predict(const WorkLoad& load, LoadItem item, double most_seconds) {
  if (!load.rates.known()) return std::nullopt;
  return Course(load, item).Run(item, most_seconds);
}

double AtMost(const WorkLoad& load, const LoadItem& item) {
  const int64_t answers = load.max_running_requests;
  const double beside = load.rates.Seconds(static_cast<double>(answers), 0);
  const auto tokens = static_cast<double>(std::max<int64_t>(
      1,
      std::min<int64_t>(load.prefill_share_tokens, load.pacer.UsualPromptTokens(answers, beside))));
  const auto seconds = [&](const LoadItem& one) {
    const double step = load.rates.Seconds(static_cast<double>(answers), tokens * one.token_work);
    return (one.prompt_tokens / tokens + 1) * step + one.answer_tokens * load.rates.Seconds(1, 0);
  };
  double all = seconds(item);
  for (const LoadItem& one : load.items) all += seconds(one);
  return all;
}

// Half of what is expected is enough to be sure.
std::optional<double> IsTooLate(WorkLoad load, const LoadItem& item, double left_seconds) {
  constexpr double kMargin = 2;
  if (AtMost(load, item) < left_seconds) return std::nullopt;
  load.flows.clear();
  const double most = kMargin * left_seconds;
  const std::optional<Forecast> forecast = Predict(load, item, most);
  if (!forecast.has_value() || forecast->first_token_seconds < most) return std::nullopt;
  return most;
}

}  // namespace folio
