#include "client/eval/kv_retrieval_task.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace folio::eval {
namespace {

constexpr uint64_t kBosTokens = 1;
// Pairs that the length of one is estimated from.
constexpr size_t kSamplePairs = 8;

// Eight, four, four, four and twelve hexadecimal digits.
std::string RandomId(std::mt19937_64& random) {
  const uint64_t a = random();
  const uint64_t b = random();
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", a >> 32, (a >> 16) & 0xFFFF, a & 0xFFFF,
                         b >> 48, b & 0xFFFFFFFFFFFF);
}

struct Pairs {
  std::vector<std::pair<std::string, std::string>> items;

  void Grow(size_t count, std::mt19937_64& random) {
    while (items.size() < count) {
      std::string key = RandomId(random);
      items.emplace_back(std::move(key), RandomId(random));
    }
  }
  std::string Json(size_t count) const {
    std::string json = "{";
    for (size_t i = 0; i < count; ++i) {
      absl::StrAppend(&json, i == 0 ? "" : ",\n ", "\"", items[i].first, "\": \"", items[i].second,
                      "\"");
    }
    return json + "}";
  }
};

std::string Question(const std::string& key) {
  return absl::StrCat("In this object the value of the key \"", key, "\" is \"");
}

}  // namespace

absl::StatusOr<Trial> KvRetrievalTask::MakeTrial(uint64_t target_tokens, int trial_idx,
                                                 int num_trials) const {
  std::seed_seq sequence{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                         static_cast<uint32_t>(target_tokens), static_cast<uint32_t>(trial_idx)};
  std::mt19937_64 random(sequence);
  Pairs pairs;
  pairs.Grow(kSamplePairs, random);
  const auto tokens_of = [&](size_t count) -> absl::StatusOr<uint64_t> {
    auto counted = count_(absl::StrCat(pairs.Json(count), " ", Question(pairs.items[0].first)));
    if (!counted.ok()) return counted;
    return *counted + kBosTokens + max_new_tokens();
  };
  const auto one = tokens_of(1);
  if (!one.ok()) return one.status();
  const auto sample = tokens_of(kSamplePairs);
  if (!sample.ok()) return sample.status();
  if (*one > target_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key-value prompt does not fit into ", target_tokens, " tokens"));
  }
  const double per_pair = static_cast<double>(*sample - *one) / (kSamplePairs - 1);
  size_t count = 1 + static_cast<size_t>(static_cast<double>(target_tokens - *one) / per_pair);
  pairs.Grow(count, random);
  auto total = tokens_of(count);
  while (total.ok() && *total > target_tokens && count > 1) {
    const double excess = static_cast<double>(*total - target_tokens) / per_pair;
    count -= std::min(count - 1, 1 + static_cast<size_t>(excess));
    total = tokens_of(count);
  }
  if (!total.ok()) return total.status();
  Trial trial;
  trial.depth = num_trials > 1 ? static_cast<double>(trial_idx) / (num_trials - 1) : 0.5;
  const auto asked =
      static_cast<size_t>(std::llround(trial.depth * static_cast<double>(count - 1)));
  trial.context = pairs.Json(count);
  trial.question = Question(pairs.items[asked].first);
  trial.expected = pairs.items[asked].second;
  trial.prompt_tokens = *total - max_new_tokens();
  trial.needle_distance_tokens = *one + static_cast<uint64_t>(per_pair * (count - 1 - asked));
  return trial;
}

bool KvRetrievalTask::IsCorrect(const Trial& trial, const std::string& answer) const {
  return absl::StrContains(answer, trial.expected);
}

}  // namespace folio::eval
