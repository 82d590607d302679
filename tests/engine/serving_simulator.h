// The serving loop in virtual time: requests come when a schedule says, and steps take as long as
// their work does on a machine of numbers. Scheduling, admission, deadlines and forecasts are the
// real ones.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "engine/runtime/engine_loop.h"
#include "engine/sched/forecast.h"
#include "engine/sched/work_costs.h"
#include "tests/engine/letter_tokenizer.h"

namespace folio::test {

// What steps take: a part that each has, one for each answer, one for each unit of work of prompts,
// and what they differ by, as a standard deviation.
struct Machine {
  double step_seconds = 0.002;
  double answer_seconds = 0.0002;
  double work_seconds = 0.00003;
  double noise = 0.1;
};

struct SimulatedRequest {
  TenantPtr tenant;
  double arrives = 0;  // in seconds since the start
  int prompt_tokens = 0;
  int answer_tokens = 0;
  double deadline_seconds = 0;  // after it came; 0: none
};

// What became of it. Seconds since it came.
struct SimulatedOutcome {
  SimulatedRequest request;
  std::optional<Forecast> forecast;
  bool refused = false;
  bool completed = false;
  double queue_seconds = 0;
  double first_token_seconds = 0;  // 0: it had none
  double end_seconds = 0;
  // Of the step that gave its first token.
  double step_seconds = 0;
};

class ServingSimulator {
 public:
  struct Options {
    SchedulerOptions scheduler = {.prefill_slowdown = 3,
                                  .costs = {.attended = 1e-4, .attended_by_answer = 1e-3}};
    Machine machine = {};
    int max_running_requests = 64;
    int max_queued_requests = 256;
    bool forecasts = true;
    bool flows = true;  // they expect more to come
  };
  explicit ServingSimulator(const Options& options);
  ~ServingSimulator();

  // Requests in the order in which they arrive. `until`: no step begins later; what has not ended
  // then has end_seconds 0.
  std::vector<SimulatedOutcome> Run(std::vector<SimulatedRequest> requests, double until);

  // Of all steps so far: their work, as WorkCosts counts that of prompts and a token of an answer
  // is one, and how long they took.
  double work() const { return work_; }
  double busy_seconds() const { return busy_seconds_; }
  double now() const { return now_; }
  // The same of a request that was answered.
  double WorkOf(const SimulatedRequest& request) const;

 private:
  class Runner;
  class Sink;

  SteadyTime Time(double seconds) const;
  // What a caller is told at `seconds`, the last step having begun at `step_begin`.
  void Ask(SimulatedOutcome* outcome, double seconds, const std::optional<double>& step_begin);
  void Submit(SimulatedOutcome* outcome);
  LoadItem ItemOf(const SimulatedRequest& request) const;
  int64_t most_requests() const {
    return options_.max_running_requests + options_.max_queued_requests;
  }

  const Options options_;
  const LetterTokenizer tokenizer_{16};
  std::mt19937_64 random_;
  double now_ = 0;
  double work_ = 0;
  double busy_seconds_ = 0;
  double last_step_seconds_ = 0;
  WorkLoad load_;
  RequestId last_id_ = 0;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Runner> runner_;
  DocumentDirectory directory_{{.max_documents = 1}};
  std::unique_ptr<EngineLoop> loop_;
};

}  // namespace folio::test
