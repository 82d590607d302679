// Forecasts against what then happens, in virtual time.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/engine/serving_mix.h"
#include "tests/engine/serving_simulator.h"

namespace folio::test {
namespace {

constexpr int kRequests = 500;

class ForecastAccuracy : public testing::Test {
 protected:
  ForecastAccuracy() { options_.max_running_requests = 16; }

  // At so many times what the server can bear.
  std::vector<SimulatedOutcome> Run(double load) {
    ServingSimulator simulator(options_);
    return simulator.Run(mix_.Poisson(kRequests, load * mix_.Capacity(options_)), 1e6);
  }
  // How many had their first token within 25 % of what was said, or within a step of it: nothing is
  // told apart within one.
  static double PartNear(const std::vector<SimulatedOutcome>& outcomes) {
    double count = 0;
    double near = 0;
    for (const SimulatedOutcome& outcome : outcomes) {
      if (!outcome.forecast.has_value() || outcome.first_token_seconds == 0) continue;
      const double was = outcome.first_token_seconds;
      const double off = std::abs(outcome.forecast->first_token_seconds - was);
      ++count;
      near += off <= 0.25 * was || off <= outcome.step_seconds ? 1 : 0;
    }
    EXPECT_GE(count, 20);
    return near / count;
  }

  ServingSimulator::Options options_;
  ServingMix mix_;
};

// Where one tenant is alone, its work goes in the order of its sizes.
TEST_F(ForecastAccuracy, OfOneTenant) {
  mix_.num_tenants = 1;
  EXPECT_GE(PartNear(Run(0.4)), 0.9);
  EXPECT_GE(PartNear(Run(0.6)), 0.9);
  EXPECT_GE(PartNear(Run(1.5)), 0.8);
}

// Their requests take the shares and places of each other's.
TEST_F(ForecastAccuracy, OfSeveralTenants) {
  options_.max_queued_requests = 100;
  EXPECT_GE(PartNear(Run(0.4)), 0.85);
  EXPECT_GE(PartNear(Run(0.8)), 0.85);
  EXPECT_GE(PartNear(Run(1.5)), 0.75);
}

// What nobody can know is what comes: without that, little is left.
TEST_F(ForecastAccuracy, OfTheLastRequestThatComes) {
  options_.flows = false;
  std::vector<SimulatedOutcome> last;
  const std::vector<SimulatedRequest> all = mix_.Poisson(200, 20);
  for (size_t n = 60; n < all.size(); ++n) {
    ServingSimulator simulator(options_);
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(n);
    last.push_back(simulator.Run({end - 60, end}, 1e6).back());
  }
  EXPECT_GE(PartNear(last), 0.9);
}

}  // namespace
}  // namespace folio::test
