#include "engine/sampling/logit_rules.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace folio {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

bool CountsTokens(const SamplingParams& params) {
  return params.frequency_penalty != 0 || params.presence_penalty != 0;
}

bool EndsWith(std::span<const int32_t> tokens, std::span<const int32_t> end) {
  return tokens.size() >= end.size() && std::ranges::equal(tokens.last(end.size()), end);
}

auto FirstFrom(auto& changes, int32_t token) {
  return std::ranges::lower_bound(changes, token, {}, &LogitChange::token);
}

}  // namespace

LogitRules::LogitRules(const SamplingParams& params, std::vector<int32_t> ending,
                       int min_new_tokens)
    : params_(params), ending_(std::move(ending)), min_new_tokens_(min_new_tokens) {
  for (const TokenBias& bias : params_.logit_bias) ChangeOf(bias.token).before = bias.bias;
}

bool LogitRules::AreNeeded(const SamplingParams& params, int min_new_tokens) {
  return CountsTokens(params) || !params.logit_bias.empty() || !params.bad_words.empty() ||
         min_new_tokens > 0;
}

bool LogitRules::FollowTokens() const {
  return CountsTokens(params_) || num_new_tokens_ < min_new_tokens_ ||
         std::ranges::any_of(params_.bad_words, [](const auto& word) { return word.size() > 1; });
}

LogitChange& LogitRules::ChangeOf(int32_t token) {
  const auto at = FirstFrom(changes_, token);
  if (at != changes_.end() && at->token == token) return *at;
  return *changes_.insert(at, {token, 0.0f, 0.0f});
}

bool LogitRules::Masks(int32_t token) const {
  const auto at = FirstFrom(changes_, token);
  return at != changes_.end() && at->token == token && at->after == kMasked;
}

void LogitRules::Mask(int32_t token) {
  LogitChange& change = ChangeOf(token);
  if (change.after == kMasked) return;
  masked_.push_back(change);
  change.after = kMasked;
}

void LogitRules::SetMasks(std::span<const int32_t> tokens) {
  for (const std::vector<int32_t>& word : params_.bad_words) {
    if (EndsWith(tokens, std::span(word).first(word.size() - 1))) Mask(word.back());
  }
  if (num_new_tokens_ >= min_new_tokens_) return;
  for (const int32_t token : ending_) Mask(token);
}

void LogitRules::Add(std::span<const int32_t> tokens) {
  for (const LogitChange& change : masked_) ChangeOf(change.token) = change;
  masked_.clear();
  ++num_new_tokens_;
  if (CountsTokens(params_)) {
    const auto count = static_cast<float>(++counts_[tokens.back()]);
    ChangeOf(tokens.back()).after = -(count * params_.frequency_penalty + params_.presence_penalty);
  }
  SetMasks(tokens);
}

}  // namespace folio
