#include "loadtest/workload.h"

#include <vector>

namespace folio::loadtest {
namespace {

// Keeps the stream of the probes apart from that of the requests.
constexpr uint64_t kProbeSalt = 0x9e3779b97f4a7c15;

template <typename Value>
std::discrete_distribution<size_t> Weights(const std::vector<std::pair<Value, double>>& choices) {
  std::vector<double> weights;
  weights.reserve(choices.size());
  for (const auto& [value, weight] : choices) weights.push_back(weight);
  return std::discrete_distribution<size_t>(weights.begin(), weights.end());
}

}  // namespace

Workload::Workload(const Options& options)
    : options_(options),
      random_(options.seed),
      probe_random_(options.seed ^ kProbeSalt),
      strategy_(Weights(options.strategies)),
      prompt_(Weights(options.prompt_tokens)),
      output_(Weights(options.output_tokens)) {}

RequestSpec Workload::Next() {
  RequestSpec spec;
  spec.index = num_drawn_++;
  spec.strategy = options_.strategies[strategy_(random_)].first;
  spec.prompt_tokens = options_.prompt_tokens[prompt_(random_)].first;
  spec.max_new_tokens = options_.output_tokens[output_(random_)].first;
  spec.greedy = uniform_(random_) >= options_.sampled_fraction;
  spec.seed = random_();
  // Drawn always, so that one option does not change what the others draw.
  const bool cancel = uniform_(random_) < options_.cancel_fraction;
  const double delay = uniform_(random_) * options_.max_cancel_delay_seconds;
  if (cancel) spec.cancel_delay_seconds = delay;
  return spec;
}

RequestSpec Workload::NextProbe() {
  RequestSpec spec;
  spec.index = num_probes_++;
  spec.probe = true;
  spec.strategy = "default";
  spec.prompt_tokens = options_.probe_prompt_tokens;
  spec.max_new_tokens = options_.probe_output_tokens;
  spec.seed = probe_random_();
  return spec;
}

}  // namespace folio::loadtest
