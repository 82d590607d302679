#include "server/liveness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace folio::server {

bool Liveness::Stopped(bool busy, double value, SteadyTime::duration passed, Beat* beat) const {
  if (!busy || value != beat->value) {
    *beat = {value, {}};
    return false;
  }
  beat->stopped += passed;
  return beat->stopped >= limit_;
}

std::optional<std::string> Liveness::Stalled(const EngineStats& engine,
                                             const PromptPool::Progress& prompts, SteadyTime now) {
  const auto passed = std::min(now - std::exchange(last_look_, now), most_of_look_);
  const bool step = Stopped(engine.busy, engine.last_step_unix_seconds, passed, &step_);
  const bool task =
      Stopped(prompts.busy, static_cast<double>(prompts.num_finished), passed, &task_);
  if (!step && !task) return std::nullopt;
  return absl::StrCat(step ? "no step of the engine" : "no task that tokenises", " has ended for ",
                      std::chrono::duration_cast<std::chrono::seconds>(limit_).count(), " s");
}

}  // namespace folio::server
