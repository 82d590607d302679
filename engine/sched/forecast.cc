#include "engine/sched/forecast.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace folio {
namespace {

constexpr double kNothing = 1e-9;
constexpr double kManySteps = 1e18;

class Course {
 public:
  explicit Course(const WorkLoad& load) : load_(load), free_bytes_(load.free_bytes) {
    for (const LoadItem& one : load.items) (one.runs ? running_ : waiting_).push_back({one});
    if (!load.in_step) return;
    Advance(/*most_steps=*/1);
    seconds_ = std::max(0.0, seconds_ - load.step_elapsed_seconds);
  }

  Forecast Run(LoadItem item, double most_seconds) {
    item.turn = TurnOf(item);
    item.rank += item.served;
    const auto behind = std::find_if(waiting_.begin(), waiting_.end(), [&](const Part& one) {
      const bool is_passed =
          item.tenant != nullptr && one.item.tenant == item.tenant && one.item.rank > item.rank;
      return is_passed || one.item.turn > item.turn;
    });
    waiting_.insert(behind, {item, /*is_asked=*/true});
    while (seconds_ < most_seconds) {
      Admit();
      if (!Advance(kManySteps)) break;
      if (answered_) return {queue_seconds_.value_or(0), seconds_};
    }
    return {queue_seconds_.value_or(most_seconds), most_seconds};
  }

 private:
  struct Part {
    LoadItem item;
    bool is_asked = false;
    double per_step = 0;

    bool answers() const { return item.prompt_tokens < kNothing; }
    double left() const { return answers() ? item.answer_tokens : item.prompt_tokens; }
  };

  static int CountOf(const void* tenant, const std::vector<Part>& parts) {
    return static_cast<int>(std::count_if(parts.begin(), parts.end(), [tenant](const Part& one) {
      return one.item.tenant == tenant && one.item.needs_place;
    }));
  }

  // As FairShare::TakeTurns.
  double TurnOf(const LoadItem& item) const {
    if (item.tenant == nullptr) return 1 / item.weight;
    int before = 1;
    for (const LoadItem& one : load_.items) {
      if (one.tenant != item.tenant || !one.needs_place) continue;
      before += one.runs || one.rank <= item.rank + item.served ? 1 : 0;
    }
    return before / item.weight;
  }

  int num_places() const {
    return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                          [](const Part& one) { return one.item.needs_place; }));
  }

  // As FairShare::WhoGivesWay.
  bool MakePlace(const Part& part) {
    const int own = CountOf(part.item.tenant, running_);
    for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
      if (!it->item.needs_place || part.item.tenant == nullptr) continue;
      const int count = CountOf(it->item.tenant, running_);
      const bool has_too_many =
          count > 1 && (own == 0 || (count - 1) / it->item.weight >= (own + 1) / part.item.weight);
      if (!has_too_many) continue;
      Part gives_way = *it;
      gives_way.item.needed_bytes = 0;  // it keeps them
      gives_way.item.turn = 0;
      running_.erase(std::next(it).base());
      waiting_.insert(waiting_.begin(), gives_way);
      return true;
    }
    return false;
  }

  void Admit() {
    for (size_t n = 0; n < waiting_.size();) {
      const Part part = waiting_[n];
      if (part.item.needed_bytes > free_bytes_) {
        ++n;
        continue;
      }
      if (part.item.needs_place && num_places() >= load_.max_running_requests) {
        if (!MakePlace(part)) return;
        ++n;  // who gave way is in front
      }
      free_bytes_ -= part.item.needed_bytes;
      if (part.is_asked) queue_seconds_ = seconds_;
      running_.push_back(part);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }

  // As FairShare::StepFor.
  static double ShortStep(const std::vector<Part*>& prompts, double weights, double budget) {
    double level = 0;
    for (const Part* part : prompts) {
      double asked = 0;
      for (const Part* one : prompts) {
        const bool same = one->item.tenant != nullptr && one->item.tenant == part->item.tenant;
        asked += one == part || same ? one->item.prompt_tokens : 0;
      }
      asked /= part->item.weight;
      if (asked * weights <= budget) level = std::max(level, asked);
    }
    return level == 0 ? budget : std::min(budget, level * weights);
  }

  // Gives each prompt its tokens of a step; returns their work.
  double ShareOut(double budget) {
    std::vector<Part*> prompts;
    double weights = 0;
    std::vector<std::pair<const void*, double>> allotted;  // of tenants
    for (Part& part : running_) {
      part.per_step = part.answers() ? 1 : 0;
      if (!part.answers()) prompts.push_back(&part);
    }
    std::stable_sort(prompts.begin(), prompts.end(),
                     [](const Part* a, const Part* b) { return a->item.rank < b->item.rank; });
    const auto find = [&](const void* tenant) {
      return std::find_if(allotted.begin(), allotted.end(),
                          [tenant](const auto& one) { return one.first == tenant; });
    };
    for (const Part* part : prompts) {
      if (part->item.tenant != nullptr && find(part->item.tenant) != allotted.end()) continue;
      weights += part->item.weight;
      if (part->item.tenant != nullptr) allotted.emplace_back(part->item.tenant, part->item.weight);
    }
    budget = ShortStep(prompts, weights, budget);
    const double each = weights > 0 ? budget / weights : 0;
    const double most = running_.size() == 1 ? budget : load_.prefill_share_tokens;
    double work = 0;
    const auto give = [&](Part* part, double tokens) {
      tokens = std::clamp(tokens, 0.0, std::min(most, part->item.prompt_tokens) - part->per_step);
      part->per_step += tokens;
      work += tokens * part->item.token_work;
      budget -= tokens;
      return tokens;
    };
    for (Part* part : prompts) {
      const auto own = find(part->item.tenant);
      if (own == allotted.end()) {
        give(part, each * part->item.weight);
      } else {
        own->second -= give(part, own->second * each) / each;
      }
    }
    for (Part* part : prompts) give(part, budget);
    return work;
  }

  // To the next end of a prompt or an answer; false if nothing runs.
  bool Advance(double most_steps) {
    const auto num_answers = std::count_if(running_.begin(), running_.end(),
                                           [](const Part& one) { return one.answers(); });
    const double alone = load_.rates.Seconds(static_cast<double>(num_answers), 0);
    const double budget =
        std::min<double>(static_cast<double>(load_.step_tokens - num_answers),
                         static_cast<double>(load_.pacer.UsualPromptTokens(num_answers, alone)));
    const double work = ShareOut(budget);
    double steps = 0;
    for (const Part& part : running_) {
      if (part.per_step < kNothing) continue;
      const double own = std::max(1.0, part.left() / part.per_step);
      steps = steps == 0 ? own : std::min(steps, own);
    }
    if (steps == 0) return false;
    steps = std::min(steps, most_steps);
    seconds_ += steps * load_.rates.Seconds(static_cast<double>(num_answers), work);
    for (Part& part : running_) {
      const double tokens = steps * part.per_step;
      const bool read = !part.answers() && part.item.prompt_tokens - tokens < kNothing;
      (part.answers() ? part.item.answer_tokens : part.item.prompt_tokens) -= tokens;
      if (!read) continue;
      part.item.prompt_tokens = 0;
      part.item.answer_tokens -= 1;  // it is drawn in the step that ends its prompt
      answered_ = answered_ || part.is_asked;
    }
    std::erase_if(running_, [this](const Part& part) {
      const bool ended = part.answers() && part.item.answer_tokens < kNothing;
      if (ended) free_bytes_ += part.item.needed_bytes;
      return ended;
    });
    return true;
  }

  const WorkLoad& load_;
  std::vector<Part> running_;
  std::vector<Part> waiting_;
  int64_t free_bytes_;
  double seconds_ = 0;
  std::optional<double> queue_seconds_;
  bool answered_ = false;
};

}  // namespace

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

std::optional<Forecast> Predict(const WorkLoad& load, LoadItem item, double most_seconds) {
  if (!load.rates.known()) return std::nullopt;
  return Course(load).Run(std::move(item), most_seconds);
}

}  // namespace folio
