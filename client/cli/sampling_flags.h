// Sampling and stopping on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "folio/v1/inference.pb.h"

namespace folio::cli {

// Unset values are left to the server.
struct SamplingFlags {
  std::optional<uint32_t> max_new_tokens;
  std::optional<uint32_t> min_new_tokens;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> presence_penalty;
  std::vector<std::string> logit_bias;
  std::vector<std::string> bad_words;
  std::vector<std::string> choices;
  std::string regex;
  std::string json_schema;  // a file
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::optional<uint32_t> logprobs;
  std::optional<uint32_t> prompt_logprobs;
  bool echo = false;
};

// `flags` must outlive the parsing of `app`.
void AddSamplingFlags(CLI::App& app, SamplingFlags& flags);

// Writes the sampling, stopping and response parts of `request`.
void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest* request);

}  // namespace folio::cli
