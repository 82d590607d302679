#include "engine/runtime/restore_choice.h"

namespace folio {
namespace {

// Less says nothing: the first read opens files, the first step touches memory.
constexpr double kLeastSeconds = 0.05;
// What lies further back counts less and less.
constexpr double kMostSeconds = 10;
constexpr int kPrefillsInARow = 8;

}  // namespace

void MeasuredRate::Add(int64_t amount, double seconds) {
  if (amount <= 0 || seconds < 0) return;
  amount_ += static_cast<double>(amount);
  seconds_ += seconds;
  if (seconds_ <= kMostSeconds) return;
  amount_ *= kMostSeconds / (2 * seconds_);
  seconds_ = kMostSeconds / 2;
}

std::optional<double> MeasuredRate::SecondsFor(int64_t amount) const {
  if (seconds_ < kLeastSeconds) return std::nullopt;
  return static_cast<double>(amount) * seconds_ / amount_;
}

bool RestoreChoice::ShouldPrefill(const Work& work) {
  const std::optional<double> read = reads_.SecondsFor(work.read_bytes);
  const std::optional<double> prefill = prefills_.SecondsFor(work.prefill_tokens);
  const bool faster = read.has_value() && prefill.has_value() && *prefill < *read;
  if (faster && prefilled_since_read_ < kPrefillsInARow) {
    ++prefilled_since_read_;
    ++num_prefilled_;
    return true;
  }
  prefilled_since_read_ = 0;
  ++num_read_;
  return false;
}

}  // namespace folio
