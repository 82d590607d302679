#include "server/sampling_mapping.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/random_bits.h"

namespace folio::server {
namespace {

constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr int kMaxBadWords = 64;
constexpr size_t kMaxBadWordBytes = 256;
constexpr int kMaxBiases = 1024;
constexpr float kMaxBias = 100.0f;
constexpr float kMaxPenalty = 2.0f;

// Empty: nothing is wrong.
template <typename Strings>
std::string WhatIsWrongWith(const Strings& strings, int max_strings, size_t max_bytes) {
  if (strings.size() > max_strings) {
    return absl::StrCat("has ", strings.size(), " strings, at most ", max_strings, " are allowed");
  }
  for (const std::string& string : strings) {
    if (!string.empty() && string.size() <= max_bytes) continue;
    return absl::StrCat("a string has ", string.size(), " bytes, must have 1 to ", max_bytes);
  }
  return "";
}

void BiasFromProto(const google::protobuf::RepeatedPtrField<v1::TokenBias>& in, SamplingParams* out,
                   FieldViolations* bad) {
  constexpr char kField[] = "sampling.logit_bias";
  if (in.size() > kMaxBiases) {
    return bad->push_back({kField, absl::StrCat("has ", in.size(), " entries, at most ", kMaxBiases,
                                                " are allowed")});
  }
  for (const v1::TokenBias& entry : in) {
    out->logit_bias.push_back({static_cast<int32_t>(entry.token_id()), entry.bias()});
  }
  std::ranges::sort(out->logit_bias, {}, &TokenBias::token);
  const auto twice = std::ranges::adjacent_find(out->logit_bias, {}, &TokenBias::token);
  if (twice != out->logit_bias.end()) {
    return bad->push_back(
        {kField, absl::StrCat("has token ", static_cast<uint32_t>(twice->token), " twice")});
  }
  for (const auto& [token, bias] : out->logit_bias) {
    if (bias >= -kMaxBias && bias <= kMaxBias) continue;
    return bad->push_back({absl::StrCat(kField, "[", static_cast<uint32_t>(token), "]"),
                           absl::StrCat("is ", bias, ", must be in [-100, 100]")});
  }
}

void PenaltyFromProto(const char* field, float in, float* out, FieldViolations* bad) {
  *out = in;
  if (in >= -kMaxPenalty && in <= kMaxPenalty) return;
  bad->push_back({field, absl::StrCat("is ", in, ", must be in [-2, 2]")});
}

}  // namespace

void SamplingFromProto(const v1::SamplingParams& in, SamplingParams* out, FieldViolations* bad) {
  if (in.has_temperature()) out->temperature = in.temperature();
  if (!(out->temperature >= 0.0f && out->temperature <= 100.0f)) {
    bad->push_back(
        {"sampling.temperature", absl::StrCat("is ", out->temperature, ", must be in [0, 100]")});
  }
  if (in.top_k() > (1u << 30)) bad->push_back({"sampling.top_k", "must be at most 2^30"});
  if (in.has_top_k()) out->top_k = static_cast<int>(in.top_k());
  if (in.has_top_p()) out->top_p = in.top_p();
  if (!(out->top_p > 0.0f && out->top_p <= 1.0f)) {
    bad->push_back({"sampling.top_p", absl::StrCat("is ", out->top_p, ", must be in (0, 1]")});
  }
  out->min_p = in.min_p();
  if (!(out->min_p >= 0.0f && out->min_p < 1.0f)) {
    bad->push_back({"sampling.min_p", absl::StrCat("is ", out->min_p, ", must be in [0, 1)")});
  }
  if (in.has_repetition_penalty()) out->repetition_penalty = in.repetition_penalty();
  if (!(out->repetition_penalty > 0.0f && out->repetition_penalty <= 10.0f)) {
    bad->push_back({"sampling.repetition_penalty",
                    absl::StrCat("is ", out->repetition_penalty, ", must be in (0, 10]")});
  }
  PenaltyFromProto("sampling.frequency_penalty", in.frequency_penalty(), &out->frequency_penalty,
                   bad);
  PenaltyFromProto("sampling.presence_penalty", in.presence_penalty(), &out->presence_penalty, bad);
  BiasFromProto(in.logit_bias(), out, bad);
  std::string wrong = WhatIsWrongWith(in.bad_words(), kMaxBadWords, kMaxBadWordBytes);
  if (!wrong.empty()) bad->push_back({"sampling.bad_words", std::move(wrong)});
  out->seed = SeedOf(in, 0);
}

uint64_t SeedOf(const v1::SamplingParams& in, uint32_t answer) {
  return in.has_seed() ? in.seed() + answer : RandomBits() >> 32;
}

void StoppingFromProto(const v1::StoppingCriteria& in, const ServerOptions& options,
                       StopParams* out, FieldViolations* bad) {
  out->max_new_tokens = std::min(out->max_new_tokens, options.max_new_tokens);
  const auto limit = static_cast<uint32_t>(options.max_new_tokens);
  if (in.has_max_new_tokens() && (in.max_new_tokens() < 1 || in.max_new_tokens() > limit)) {
    bad->push_back({"stopping.max_new_tokens",
                    absl::StrCat("is ", in.max_new_tokens(), ", must be in [1, ", limit, "]")});
  } else if (in.has_max_new_tokens()) {
    out->max_new_tokens = static_cast<int>(in.max_new_tokens());
  }
  if (in.min_new_tokens() > static_cast<uint32_t>(out->max_new_tokens)) {
    bad->push_back({"stopping.min_new_tokens",
                    absl::StrCat("is ", in.min_new_tokens(), ", must be at most max_new_tokens, ",
                                 out->max_new_tokens)});
  } else {
    out->min_new_tokens = static_cast<int>(in.min_new_tokens());
  }
  std::string wrong = WhatIsWrongWith(in.stop(), kMaxStops, kMaxStopBytes);
  if (!wrong.empty()) bad->push_back({"stopping.stop", std::move(wrong)});
  out->stop_strings.assign(in.stop().begin(), in.stop().end());
  out->stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out->ignore_eos = in.ignore_eos();
}

v1::SamplingParams ToProto(const SamplingParams& sampling) {
  v1::SamplingParams out;
  out.set_temperature(sampling.temperature);
  out.set_top_k(static_cast<uint32_t>(sampling.top_k));
  out.set_top_p(sampling.top_p);
  out.set_min_p(sampling.min_p);
  out.set_repetition_penalty(sampling.repetition_penalty);
  out.set_seed(sampling.seed);
  out.set_frequency_penalty(sampling.frequency_penalty);
  out.set_presence_penalty(sampling.presence_penalty);
  for (const auto& [token, bias] : sampling.logit_bias) {
    v1::TokenBias* const entry = out.add_logit_bias();
    entry->set_token_id(static_cast<uint32_t>(token));
    entry->set_bias(bias);
  }
  return out;
}

}  // namespace folio::server
