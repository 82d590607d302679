#include "tests/engine/serving_simulator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/attention/attention_registry.h"
#include "gtest/gtest.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kVocab = 16;
constexpr int kPageTokens = 16;
constexpr int64_t kFrameBytes = 4096;
constexpr int64_t kFrames = 1 << 18;
const std::vector<int32_t> kEos = {2};

AttentionModel Model() {
  AttentionModel model;
  model.limits = {1 << 20, 16, 0};
  model.rope.head_dim = model.rope.rotary_dim = 16;
  model.rope.trained_length = model.rope.original_length = 1 << 20;
  return model;
}

AttentionSpec FullAttention() { return *ResolveAttention({{"full", {}}, {}}, {}, Model(), {}); }

}  // namespace

// Takes the time of its steps.
class ServingSimulator::Runner final : public EngineLoop::StepRunner {
 public:
  explicit Runner(ServingSimulator* simulator) : simulator_(simulator) {}

  void Start(const std::vector<ScheduledTokens>& step) override {
    const Options& options = simulator_->options_;
    double answers = 0;
    double work = 0;
    results_ = {};
    for (const ScheduledTokens& part : step) {
      const Sequence& sequence = *part.sequence;
      if (sequence.decoding()) {
        ++answers;
      } else {
        work += options.scheduler.costs.OfPrompt(sequence.plan, sequence.num_in_kv,
                                                 sequence.num_in_kv + part.num_tokens);
      }
      if (sequence.num_pending() == part.num_tokens) {
        results_.outputs.push_back({sequence.id, {5, 0.0f, {}, true}});
      }
    }
    const Machine& machine = options.machine;
    std::normal_distribution<double> noise(1, machine.noise);
    seconds_ =
        std::max(0.1, noise(simulator_->random_)) *
        (machine.step_seconds + machine.answer_seconds * answers + machine.work_seconds * work);
    simulator_->work_ += work + answers;
  }
  ModelRunner::Results Finish() override {
    simulator_->now_ += seconds_;
    simulator_->busy_seconds_ += seconds_;
    simulator_->last_step_seconds_ = seconds_;
    return std::move(results_);
  }

 private:
  ServingSimulator* const simulator_;
  double seconds_ = 0;
  ModelRunner::Results results_;
};

class ServingSimulator::Sink final : public EventSink {
 public:
  Sink(const ServingSimulator* simulator, SimulatedOutcome* outcome)
      : simulator_(simulator), outcome_(outcome) {}

  void OnEvent(Event event) override {
    const double since = simulator_->now_ - outcome_->request.arrives;
    if (std::holds_alternative<PrefillEvent>(event) && outcome_->queue_seconds == 0) {
      outcome_->queue_seconds = since;
    } else if (std::holds_alternative<DeltaEvent>(event) && outcome_->first_token_seconds == 0) {
      outcome_->first_token_seconds = since;
      outcome_->step_seconds = simulator_->last_step_seconds_;
    } else if (std::holds_alternative<CompletedEvent>(event)) {
      outcome_->completed = true;
      outcome_->end_seconds = since;
    } else if (std::holds_alternative<FailedEvent>(event)) {
      outcome_->end_seconds = since;
    }
  }

 private:
  const ServingSimulator* const simulator_;
  SimulatedOutcome* const outcome_;
};

ServingSimulator::ServingSimulator(const Options& options)
    : options_(options), random_(TestSeed()) {
  const KvGeometry geometry{.num_layers = 1,
                            .num_heads = 1,
                            .num_kv_heads = 1,
                            .head_dim = 32,
                            .padded_dim = 32,
                            .page_tokens = kPageTokens,
                            .dtype = DType::kF32};
  store_ = *KvStore::Create(geometry, kFrames * kFrameBytes, HostMemory());
  runner_ = std::make_unique<Runner>(this);
  loop_ = std::make_unique<EngineLoop>(
      EngineLoopOptions{.scheduler = options.scheduler,
                        .model = Model(),
                        .max_running_requests = options.max_running_requests,
                        .vocab_size = kVocab,
                        .clock = [this] { return Time(now_); }},
      store_.get(), runner_.get(), &directory_);
}

ServingSimulator::~ServingSimulator() { loop_->FailAll(absl::UnavailableError("the end")); }

SteadyTime ServingSimulator::Time(double seconds) const {
  return SteadyTime{} + std::chrono::duration_cast<SteadyTime::duration>(
                            std::chrono::duration<double>(1e6 + seconds));
}

double ServingSimulator::WorkOf(const SimulatedRequest& request) const {
  const AttentionPlan plan = PlanFor(FullAttention(), Model());
  return options_.scheduler.costs.OfPrompt(plan, 0, request.prompt_tokens) + request.answer_tokens;
}

LoadItem ServingSimulator::ItemOf(const SimulatedRequest& request) const {
  const AttentionPlan plan = PlanFor(FullAttention(), Model());
  LoadItem item =
      NewItem(options_.scheduler.costs, plan, {0, request.prompt_tokens}, {request.tenant});
  ComesNow(load_, &item);
  item.answer_tokens = load_.answers.Expected({.max_new_tokens = request.answer_tokens});
  item.needed_bytes = store_->BytesNeeded(plan, request.prompt_tokens + request.answer_tokens,
                                          options_.scheduler.step_tokens, 0);
  return item;
}

void ServingSimulator::Ask(SimulatedOutcome* outcome, double seconds,
                           const std::optional<double>& step_begin) {
  load_.in_step = step_begin.has_value();
  load_.step_elapsed_seconds = seconds - step_begin.value_or(seconds);
  outcome->refused = loop_->accounts().load().requests >= most_requests();
  if (outcome->refused) return;
  const LoadItem item = ItemOf(outcome->request);
  if (!options_.flows) load_.flows.clear();
  if (options_.forecasts) outcome->forecast = Predict(load_, item, 24 * 3600);
  const double deadline = outcome->request.deadline_seconds;
  outcome->refused = deadline > 0 && IsTooLate(load_, item, deadline).has_value();
}

void ServingSimulator::Submit(SimulatedOutcome* outcome) {
  const SimulatedRequest& request = outcome->request;
  TenantAccounts& accounts = loop_->accounts();
  TenantAccounts::Ticket ticket;
  LimitOf of;
  TenantAccounts::Bounds bounds;
  bounds.of_all.requests = most_requests();
  outcome->refused =
      outcome->refused || accounts.Join(accounts.Open(request.tenant), {.requests = 1}, bounds,
                                        &ticket, &of) != nullptr;
  if (outcome->refused) return;
  GenerateSpec spec;
  spec.tenant = request.tenant;
  spec.tokens.assign(static_cast<size_t>(request.prompt_tokens), 3);
  spec.attention = FullAttention();
  spec.stop.max_new_tokens = request.answer_tokens;
  load_.items.push_back(ItemOf(request));  // those that come during this step know of it
  if (request.deadline_seconds > 0) {
    spec.deadline = Time(request.arrives + request.deadline_seconds);
  }
  auto sink = std::make_shared<Sink>(this, outcome);
  loop_->Submit(++last_id_, std::make_unique<Generation>(std::move(spec), std::move(sink),
                                                         tokenizer_, kEos, std::move(ticket)));
}

// As the thread of the engine: what came during a step is there for the next one.
std::vector<SimulatedOutcome> ServingSimulator::Run(std::vector<SimulatedRequest> requests,
                                                    double until) {
  std::vector<SimulatedOutcome> outcomes;
  for (SimulatedRequest& request : requests) {
    outcomes.emplace_back().request = std::move(request);
  }
  size_t next = 0;
  const auto take = [&](const std::optional<double>& step_begin) {
    for (; next < outcomes.size() && outcomes[next].request.arrives <= now_; ++next) {
      Ask(&outcomes[next], outcomes[next].request.arrives, step_begin);
      Submit(&outcomes[next]);
    }
  };
  while (now_ < until) {
    loop_->AdmitRequests();
    loop_->Describe(&load_);
    const double begin = now_;
    if (loop_->RunStep()) {
      take(begin);
    } else if (next < outcomes.size()) {
      now_ = std::max(now_, outcomes[next].request.arrives);
      take(std::nullopt);
    } else {
      break;
    }
  }
  loop_->FailAll(absl::UnavailableError("the end"));
  return outcomes;
}

}  // namespace folio::test
