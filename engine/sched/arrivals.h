#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/sched/forecast.h"
#include "engine/types/request.h"

namespace folio {

// What has come lately, by which a forecast knows what to expect: the last requests, of the last
// minutes. Engine thread only.
class Arrivals {
 public:
  explicit Arrivals(SteadyTime start) : start_(start) {}

  // A request has come, as it was then; `together`: its tenant has others here.
  void Note(const LoadItem& item, bool together, SteadyTime now);

  // One flow for all requests of about the same size of a tenant; replaces those in `flows`.
  void Describe(SteadyTime now, std::vector<WorkFlow>* flows) const;

 private:
  struct Arrival {
    SteadyTime time;
    LoadItem item;
    bool together;
  };
  SteadyTime start_;
  std::deque<Arrival> last_;
};

}  // namespace folio
