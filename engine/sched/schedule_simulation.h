#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "engine/sched/fair_share.h"
#include "engine/sched/forecast.h"

namespace folio {

// The steps that are expected from now on, until an item has its first token or its answer. The
// first ones, as many as the caller can wait for (some microseconds each), are planned token by
// token with the FairShare of the scheduler itself, what its tenants are owed now included. Further
// away, where less is known of what comes, each one simulated stands for many, until the next
// prompt or answer ends, and what they share is no whole number of tokens.
class ScheduleSimulation {
 public:
  // `load` must outlive it. What is expected to come does so at random times, those of `future`
  // (a number). Of the tenant of `asked` more is expected to come only where some of
  // it is there already.
  ScheduleSimulation(const WorkLoad& load, const LoadItem& asked, int exact_steps, size_t future);

  enum class Until { kFirstToken, kEnd };
  // Once: `item` comes now, and is followed so far. What is not known by then takes `most_seconds`.
  Forecast Run(const LoadItem& item, double most_seconds, Until until);
  // Steps that it has looked at.
  int num_simulated() const { return num_simulated_; }

 private:
  struct Tenant {
    TenantShare share;
    int places = 0;
    // Of the step that is being shared out; the last round in which it wanted more.
    double owed = 0;
    int round = 0;
  };
  struct Part {
    LoadItem item;
    bool is_asked = false;
    Tenant* tenant = nullptr;
    Claim claim;
    double per_step = 0;

    bool gave_way() const { return item.handicap <= LoadItem::kFirst; }
    bool answers() const { return item.prompt_tokens <= 0; }
    double left() const { return answers() ? item.answer_tokens : item.prompt_tokens; }
  };
  // Where requests come from.
  struct Source {
    const WorkFlow* flow;
    double next;  // when the next one comes
  };

  Tenant* TenantOf(const LoadItem& item);
  Part PartOf(const LoadItem& item);
  void Join(const Part& part);
  void Run(const Part& part);
  void LeavePlace(const Part& part);
  // Seconds until the next one of it.
  double Gap(const WorkFlow& flow);
  // Those that have come by now wait; returns when the next one comes.
  double Arrive();

  bool has_place() const { return num_places_ < load_.max_running_requests; }
  std::vector<Part>::iterator FirstInTurn();
  bool MakePlace(const Part& part);
  void Admit();

  StepLoad Answers() const;
  double AnswerWork(const Part& part, double num_answers) const;
  // Tokens of prompts that a step may have beside answers that take so long alone.
  int64_t MostPromptTokens(double num_answers, double answers_seconds) const;
  // Gives each part its tokens of a step.
  void ShareOut(const StepLoad& answers, double budget);
  void ShareOutExactly(double num_answers, std::vector<Part*>* prompts, int64_t budget);
  void ShareOutEvenly(double num_answers, std::vector<Part*>* prompts, double budget);
  double MostTokens(double budget) const;
  bool plans_exactly() const { return num_simulated_ <= exact_steps_; }

  // Of how many steps one simulated at least stands for.
  double LeastSteps() const;
  // How many steps there are at most until something comes.
  double StepsUntil(double next) const;
  // How many steps are as the one that was shared out, until a prompt or an answer ends; 0: none,
  // nothing runs.
  double StepsAlike() const;
  // False if nothing runs.
  bool Advance(double most_steps);
  void GoOn(double tokens, double num_answers, Part* part);
  void EndAnswers();

  const WorkLoad& load_;
  const int exact_steps_;
  std::mt19937 random_;
  FairShare fair_share_;
  StepPacer pacer_;
  std::deque<Tenant> tenants_;
  std::vector<Source> sources_;
  std::vector<Part> running_;
  std::vector<Part> waiting_;
  std::vector<Claim*> claims_;
  // Something has come or ended since it was looked who may have a place.
  bool may_admit_ = true;
  int num_places_ = 0;
  int num_arrived_ = 0;
  int num_simulated_ = 0;
  double num_steps_ = 0;
  int64_t free_bytes_;
  double seconds_ = 0;
  double last_step_seconds_ = 0;
  // Of the item that is asked for.
  std::optional<double> queue_seconds_;
  std::optional<double> first_token_seconds_;
  std::optional<double> end_seconds_;
};

}  // namespace folio
