// Requests as they come to a server that several tenants share.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/serving_simulator.h"
#include "tests/engine/test_seed.h"

namespace folio::test {

struct ServingMix {
  // Lengths of prompts, and how often they come.
  std::vector<std::pair<int, double>> sizes = {{32, 0.2},    {200, 0.3},    {1000, 0.25},
                                               {4000, 0.15}, {16000, 0.07}, {32000, 0.03}};
  int num_tenants = 4;
  int answer_tokens = 32;
  double deadline_seconds = 0;
  uint64_t seed = 0;  // beside that of the test

  // So many of them, at random times, so often.
  std::vector<SimulatedRequest> Poisson(int count, double per_second) const {
    std::mt19937_64 random(TestSeed() + 1 + seed);
    std::vector<TenantPtr> tenants;
    for (int n = 0; n < num_tenants; ++n) {
      tenants.push_back(std::make_shared<Tenant>(Tenant{.name = std::to_string(n)}));
    }
    std::vector<double> weights;
    for (const auto& [size, weight] : sizes) weights.push_back(weight);
    std::discrete_distribution<size_t> size(weights.begin(), weights.end());
    std::exponential_distribution<double> gap(per_second);
    std::vector<SimulatedRequest> requests;
    double seconds = 0;
    for (int n = 0; n < count; ++n) {
      seconds += gap(random);
      requests.push_back({.tenant = tenants[random() % tenants.size()],
                          .arrives = seconds,
                          .prompt_tokens = sizes[size(random)].first,
                          .answer_tokens = answer_tokens,
                          .deadline_seconds = deadline_seconds});
    }
    return requests;
  }

  // Of them in a second, when there are always some.
  double Capacity(ServingSimulator::Options options) const {
    constexpr int kCount = 200;
    options.forecasts = false;
    options.max_queued_requests = kCount;
    ServingSimulator simulator(options);
    simulator.Run(Poisson(kCount, 1e6), 1e6);
    return kCount / simulator.now();
  }
};

}  // namespace folio::test
