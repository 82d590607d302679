// Which requests are sent.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "loadtest/options.h"

namespace folio::loadtest {

// One request before it is sent.
struct RequestSpec {
  uint64_t index = 0;
  bool probe = false;
  std::string strategy;
  uint32_t prompt_tokens = 0;
  uint32_t max_new_tokens = 0;
  bool greedy = true;
  // Seeds the words of the prompt and, if not greedy, the sampling.
  uint64_t seed = 0;
  // Seconds after sending at which the client cancels.
  std::optional<double> cancel_delay_seconds;
};

// Draws requests, always the same for a seed and never depending on time. Used by one thread.
class Workload {
 public:
  explicit Workload(const Options& options);
  RequestSpec Next();
  // A small request of the default strategy.
  RequestSpec NextProbe();

 private:
  const Options options_;
  std::mt19937_64 random_;
  std::mt19937_64 probe_random_;
  std::discrete_distribution<size_t> strategy_;
  std::discrete_distribution<size_t> prompt_;
  std::discrete_distribution<size_t> output_;
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
  uint64_t num_drawn_ = 0;
  uint64_t num_probes_ = 0;
};

}  // namespace folio::loadtest
