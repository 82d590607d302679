// A progress bar in the last line of a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/cli/console.h"

namespace folio::cli {

enum class ProgressUnit { kBytes, kTokens, kTrials };

struct Progress {
  std::string label;
  ProgressUnit unit = ProgressUnit::kTokens;
  uint64_t done = 0;
  uint64_t total = 0;
  // Done before the clock started, so not counted in the speed.
  uint64_t skipped = 0;
};

// "prefill [=====>    ] 1200/8000 tokens  812.0 tokens/s  8.37 s left", at most `columns`
// characters. A total of 0 is unknown: no bar, no remaining time. Pure.
std::string RenderProgress(const Progress& progress, double seconds, int columns);

// Draws on console.err if it is a terminal, at most ten times a second. Used by one thread.
class ProgressLine {
 public:
  explicit ProgressLine(Console& console) : console_(console) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // A new label starts the clock of the speed again.
  void Update(const Progress& progress);
  // A short text in place of a bar.
  void Note(const std::string& text);
  // Leaves an empty line to write in.
  void Clear();

 private:
  using SteadyClock = std::chrono::steady_clock;
  void Draw(const std::string& text);

  Console& console_;
  std::string label_;
  bool drawn_ = false;
  SteadyClock::time_point started_;
  SteadyClock::time_point last_drawn_;
};

}  // namespace folio::cli
