#include "loadtest/prompt_builder.h"

#include <algorithm>
#include <array>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/strategy.h"

namespace folio::loadtest {
namespace {

constexpr std::array<const char*, 48> kWords = {
    "the",   "of",    "and",   "to",    "in",    "that",  "was",   "he",   "it",  "for",
    "with",  "as",    "his",   "on",    "be",    "at",    "by",    "had",  "not", "are",
    "from",  "this",  "have",  "which", "one",   "you",   "were",  "her",  "all", "she",
    "there", "would", "their", "we",    "him",   "been",  "has",   "when", "who", "will",
    "more",  "no",    "if",    "out",   "house", "water", "river", "stone"};
constexpr float kSampledTemperature = 0.8f;
// Server side: the beginning-of-sequence token.
constexpr uint32_t kBosTokens = 1;

}  // namespace

absl::StatusOr<PromptBuilder> PromptBuilder::Create(client::Client& client) {
  const std::string lead = kWords.front();
  const auto lead_ids = client.Tokenize(lead, /*add_bos=*/false);
  if (!lead_ids.ok()) return lead_ids.status();
  std::vector<Word> words;
  for (const char* word : kWords) {
    const auto ids = client.Tokenize(absl::StrCat(lead, " ", word), /*add_bos=*/false);
    if (!ids.ok()) return ids.status();
    const size_t added = ids->size() - std::min(ids->size(), lead_ids->size());
    words.push_back({word, static_cast<uint32_t>(std::max<size_t>(added, 1))});
  }
  return PromptBuilder(std::move(words));
}

std::string PromptBuilder::BuildPrompt(uint32_t num_tokens, uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::string prompt;
  uint32_t used_tokens = kBosTokens;
  while (used_tokens < num_tokens) {
    const Word* word = &words_[random() % words_.size()];
    if (used_tokens + word->num_tokens > num_tokens) {
      word = &*std::min_element(words_.begin(), words_.end(), [](const Word& a, const Word& b) {
        return a.num_tokens < b.num_tokens;
      });
    }
    if (used_tokens + word->num_tokens > num_tokens && !prompt.empty()) break;
    absl::StrAppend(&prompt, prompt.empty() ? "" : " ", word->text);
    used_tokens += word->num_tokens;
  }
  return prompt.empty() ? words_.front().text : prompt;
}

v1::GenerateRequest PromptBuilder::BuildRequest(const RequestSpec& spec,
                                                const Options& options) const {
  v1::GenerateRequest request;
  request.set_request_id(
      absl::StrCat(spec.probe ? "probe-" : "load-", options.seed, "-", spec.index));
  request.set_prompt(BuildPrompt(spec.prompt_tokens, spec.seed));
  if (spec.strategy != "default") {
    const auto strategy = client::ParseStrategy(spec.strategy);
    if (strategy.ok()) *request.mutable_strategy() = *strategy;
  }
  request.mutable_sampling()->set_temperature(spec.greedy ? 0.0f : kSampledTemperature);
  request.mutable_sampling()->set_seed(spec.seed);
  request.mutable_stopping()->set_max_new_tokens(spec.max_new_tokens);
  request.mutable_stopping()->set_ignore_eos(options.ignore_eos);
  request.mutable_response()->set_heartbeat_interval_ms(options.heartbeat_interval_ms);
  return request;
}

}  // namespace folio::loadtest
