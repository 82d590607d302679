#pragma once

#include <string>
#include <vector>

#include "engine/backend/cuda/cuda_memory.h"
#include "engine/backend/verb_timer.h"

namespace folio::cuda {

// Seconds that the device spends on each verb, by events in its stream after every verb.
class VerbClock {
 public:
  explicit VerbClock(CudaMemory* memory) : memory_(memory) {}
  ~VerbClock();
  VerbClock(const VerbClock&) = delete;
  VerbClock& operator=(const VerbClock&) = delete;

  // Before the first verb of a step.
  void Begin() { Mark(""); }
  // After a verb: the time since the mark before is its own.
  void Mark(std::string verb);

  // Waits; all verbs since the last call, in the order of their first appearance.
  std::vector<VerbTimer::VerbTime> Take();

 private:
  CudaMemory* const memory_;
  std::vector<Event> events_;
  std::vector<std::string> verbs_;  // of the events in use
};

}  // namespace folio::cuda
