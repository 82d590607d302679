#include "client/cli/progress_line.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"

namespace folio::cli {
namespace {

constexpr int kBarColumns = 24;
constexpr std::chrono::milliseconds kDrawInterval(100);

std::string Amount(const Progress& progress) {
  const bool known = progress.total > 0;
  if (progress.unit == ProgressUnit::kBytes) {
    std::string text = FormatBytes(progress.done);
    if (known) absl::StrAppend(&text, " of ", FormatBytes(progress.total));
    return text;
  }
  const char* unit = progress.unit == ProgressUnit::kTokens ? " tokens" : " trials";
  return known ? absl::StrCat(progress.done, "/", progress.total, unit)
               : absl::StrCat(progress.done, unit);
}

std::string Speed(ProgressUnit unit, double per_second) {
  switch (unit) {
    case ProgressUnit::kBytes:
      return absl::StrCat(FormatBytes(static_cast<uint64_t>(per_second)), "/s");
    case ProgressUnit::kTokens:
      return absl::StrFormat("%.1f tokens/s", per_second);
    case ProgressUnit::kTrials:
      return absl::StrFormat("%.2f trials/s", per_second);
  }
  return "";
}

std::string Bar(uint64_t done, uint64_t total) {
  const double share = static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  const int filled = static_cast<int>(share * kBarColumns);
  std::string bar(filled, '=');
  if (filled < kBarColumns) bar += '>';
  bar.resize(kBarColumns, ' ');
  return absl::StrCat("[", bar, "]");
}

}  // namespace

std::string RenderProgress(const Progress& progress, double seconds, int columns) {
  std::string line = progress.label;
  if (progress.total > 0) absl::StrAppend(&line, " ", Bar(progress.done, progress.total));
  absl::StrAppend(&line, " ", Amount(progress));
  const uint64_t worked = progress.done - std::min(progress.done, progress.skipped);
  if (worked > 0 && seconds > 0) {
    const double per_second = static_cast<double>(worked) / seconds;
    absl::StrAppend(&line, "  ", Speed(progress.unit, per_second));
    if (progress.total > progress.done) {
      const double left = static_cast<double>(progress.total - progress.done) / per_second;
      absl::StrAppend(&line, "  ", FormatSeconds(left), " left");
    }
  }
  if (line.size() > static_cast<size_t>(std::max(columns, 1))) line.resize(std::max(columns, 1));
  return line;
}

void ProgressLine::Update(const Progress& progress) {
  if (!console_.err_is_terminal) return;
  const auto now = SteadyClock::now();
  if (progress.label != label_) {
    label_ = progress.label;
    started_ = now;
  } else if (drawn_ && now - last_drawn_ < kDrawInterval) {
    return;
  }
  last_drawn_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  Draw(RenderProgress(progress, seconds, console_.columns - 1));
}

void ProgressLine::Note(const std::string& text) {
  if (!console_.err_is_terminal) return;
  label_.clear();
  Draw(text);
}

void ProgressLine::Clear() {
  if (drawn_) console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void ProgressLine::Draw(const std::string& text) {
  console_.err << "\r\x1b[K" << text << std::flush;
  drawn_ = true;
}

}  // namespace folio::cli
