#include "client/eval/passkey_task.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

namespace folio::eval {
namespace {

constexpr char kQuestion[] = "What is the pass key? The pass key is";
// The beginning-of-sequence token that the server puts in front.
constexpr uint64_t kBosTokens = 1;
// Whole-prompt counts are dear; the estimate is within a few tokens, so that few are needed.
constexpr int kMaxCorrections = 8;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The needle stands before the sentence with this index.
size_t NeedleIndex(double depth, size_t num_sentences) {
  return static_cast<size_t>(std::llround(depth * static_cast<double>(num_sentences)));
}

absl::Status TooShort(uint64_t num_tokens) {
  return absl::InvalidArgumentError(
      absl::StrCat("a pass key prompt does not fit into ", num_tokens, " tokens"));
}

}  // namespace

// What is fixed about a trial before its length is.
struct PasskeyTask::Layout {
  std::string key;
  std::string needle;
  double depth;
  size_t first_sentence;
};

const std::vector<PasskeyRules>& AllPasskeyRules() {
  static const std::vector<PasskeyRules> rules = {
      {"landmark", 10000, 99999, 8},
      {"long_heads", 1, 50000, 8},
      {"lm_infinite", 1, 9999999, 12},
      {"coca", 10000, 99999, 64},
  };
  return rules;
}

std::string FirstDigits(const std::string& text) {
  const auto begin = std::find_if(text.begin(), text.end(), IsDigit);
  return std::string(begin, std::find_if_not(begin, text.end(), IsDigit));
}

absl::StatusOr<Trial> PasskeyTask::MakeTrial(uint64_t target_tokens, int trial_idx,
                                             int num_trials) const {
  std::seed_seq sequence{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                         static_cast<uint32_t>(target_tokens),
                         static_cast<uint32_t>(target_tokens >> 32),
                         static_cast<uint32_t>(trial_idx)};
  std::mt19937_64 random(sequence);
  Layout layout;
  const uint64_t num_keys = rules_.largest_key - rules_.smallest_key + 1;
  layout.key = absl::StrCat(rules_.smallest_key + random() % num_keys);
  layout.needle = absl::StrCat("The pass key is ", layout.key, ". Remember it. ", layout.key,
                               " is the pass key.");
  const int num_depths = num_depths_ > 0 ? num_depths_ : num_trials;
  layout.depth =
      num_depths > 1 ? static_cast<double>(trial_idx % num_depths) / (num_depths - 1) : 0.5;
  layout.first_sentence =
      filler_.start() == FillerStart::kAnywhere ? random() % filler_.num_sentences() : 0;
  // The answer belongs to the length: a prompt of the trained length would be answered beyond it.
  if (target_tokens <= max_new_tokens()) return TooShort(target_tokens);
  return FitToLength(layout, target_tokens - max_new_tokens());
}

bool PasskeyTask::IsCorrect(const Trial& trial, const std::string& answer) const {
  return FirstDigits(answer) == trial.expected;
}

std::string PasskeyTask::BuildContext(const Layout& layout, size_t num_sentences) const {
  const size_t needle_idx = NeedleIndex(layout.depth, num_sentences);
  std::string context;
  for (size_t i = 0; i <= num_sentences; ++i) {
    if (i == needle_idx) absl::StrAppend(&context, context.empty() ? "" : " ", layout.needle);
    if (i == num_sentences) break;
    absl::StrAppend(&context, context.empty() ? "" : " ",
                    filler_.at(layout.first_sentence + i).text);
  }
  return context;
}

absl::StatusOr<Trial> PasskeyTask::FitToLength(const Layout& layout,
                                               uint64_t max_prompt_tokens) const {
  const absl::StatusOr<uint64_t> fixed = count_(absl::StrCat(layout.needle, " ", kQuestion));
  if (!fixed.ok()) return fixed.status();
  const absl::StatusOr<uint64_t> needle = count_(layout.needle);
  if (!needle.ok()) return needle.status();
  const auto tokens_at = [&](size_t i) { return filler_.at(layout.first_sentence + i).num_tokens; };
  size_t num_sentences = 0;
  uint64_t estimate = *fixed + kBosTokens;
  while (estimate + tokens_at(num_sentences) <= max_prompt_tokens)
    estimate += tokens_at(num_sentences++);

  Trial trial;
  trial.question = kQuestion;
  trial.expected = layout.key;
  trial.depth = layout.depth;
  size_t fitted_sentences = 0;
  bool was_too_long = false;
  for (int i = 0; i < kMaxCorrections; ++i) {
    std::string context = BuildContext(layout, num_sentences);
    const absl::StatusOr<uint64_t> counted = count_(absl::StrCat(context, " ", kQuestion));
    if (!counted.ok()) return counted.status();
    const uint64_t num_tokens = *counted + kBosTokens;
    if (num_tokens <= max_prompt_tokens) {
      trial.context = std::move(context);
      trial.prompt_tokens = num_tokens;
      fitted_sentences = num_sentences;
      uint64_t room = max_prompt_tokens - num_tokens;
      if (was_too_long || room < tokens_at(num_sentences)) break;
      while (room >= tokens_at(num_sentences)) room -= tokens_at(num_sentences++);
    } else {
      uint64_t excess = num_tokens - max_prompt_tokens;
      while (excess > 0 && num_sentences > 0) {
        excess -= std::min(excess, tokens_at(--num_sentences));
      }
      if (excess > 0 || !trial.context.empty()) break;
      was_too_long = true;
    }
  }
  if (trial.context.empty()) {
    return TooShort(max_prompt_tokens);
  }
  trial.needle_tokens = *needle;
  trial.needle_distance_tokens = *fixed;
  for (size_t i = NeedleIndex(layout.depth, fitted_sentences); i < fitted_sentences; ++i) {
    trial.needle_distance_tokens += tokens_at(i);
  }
  return trial;
}

}  // namespace folio::eval
