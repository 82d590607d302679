#include "client/cli/sampling_flags.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"

namespace folio::cli {
namespace {

std::optional<std::pair<uint32_t, float>> ReadBias(const std::string& text) {
  const size_t sign = text.find('=');
  std::pair<uint32_t, float> bias;
  const bool ok = sign != std::string::npos &&
                  absl::SimpleAtoi(text.substr(0, sign), &bias.first) &&
                  absl::SimpleAtof(text.substr(sign + 1), &bias.second);
  return ok ? std::optional(bias) : std::nullopt;
}

std::string CheckBias(const std::string& text) {
  return ReadBias(text) ? "" : "'" + text + "' must be ID=BIAS, a token id and a number";
}

void ApplyConstraintFlags(const SamplingFlags& flags, v1::GenerateRequest* request) {
  for (const std::string& choice : flags.choices) {
    request->mutable_constraint()->mutable_choices()->add_choices(choice);
  }
  if (!flags.regex.empty()) request->mutable_constraint()->set_regex(flags.regex);
  if (flags.json_schema.empty()) return;
  std::ifstream file(flags.json_schema, std::ios::binary);
  std::ostringstream schema;
  schema << file.rdbuf();
  request->mutable_constraint()->set_json_schema(schema.str());
}

}  // namespace

void AddSamplingFlags(CLI::App& app, SamplingFlags& flags) {
  constexpr char kGroup[] = "Sampling";
  app.add_option("--max-new-tokens", flags.max_new_tokens, "Most tokens in the answer")
      ->group(kGroup);
  app.add_option("--min-new-tokens", flags.min_new_tokens, "The answer does not end before")
      ->group(kGroup);
  app.add_option("--temperature", flags.temperature, "0 = greedy (default)")->group(kGroup);
  app.add_option("--top-k", flags.top_k, "Keep the k most probable tokens")->group(kGroup);
  app.add_option("--top-p", flags.top_p, "Keep the smallest set of this probability")
      ->group(kGroup);
  app.add_option("--min-p", flags.min_p, "Drop tokens below this share of the best one")
      ->group(kGroup);
  app.add_option("--repetition-penalty", flags.repetition_penalty, "Above 1 repeats less")
      ->group(kGroup);
  app.add_option("--frequency-penalty", flags.frequency_penalty,
                 "Above 0: less likely with each time that the answer has a token, up to 2")
      ->group(kGroup);
  app.add_option("--presence-penalty", flags.presence_penalty,
                 "Above 0: tokens that the answer has are less likely, up to 2")
      ->group(kGroup);
  app.add_option("--logit-bias", flags.logit_bias,
                 "Added to the logit of a token id; may be given several times")
      ->type_name("ID=BIAS")
      ->allow_extra_args(false)
      ->check(CheckBias, "", "")
      ->group(kGroup);
  app.add_option("--bad-word", flags.bad_words,
                 "Text that the answer must not get; may be given several times")
      ->allow_extra_args(false)
      ->group(kGroup);
  auto* const choice =
      app.add_option("--choice", flags.choices, "The answer is one of these; given several times")
          ->allow_extra_args(false)
          ->group(kGroup);
  auto* const regex =
      app.add_option("--regex", flags.regex, "The whole answer matches this expression")
          ->excludes(choice)
          ->group(kGroup);
  app.add_option("--json-schema", flags.json_schema,
                 "The answer is JSON of the schema in this file")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->excludes(choice)
      ->excludes(regex)
      ->group(kGroup);
  app.add_option("--seed", flags.seed, "Random stream of this answer")->group(kGroup);
  app.add_option("--stop", flags.stop, "End before this text; may be given several times")
      ->allow_extra_args(false)
      ->group(kGroup);
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the end of the sequence")
      ->group(kGroup);
  app.add_option("--logprobs", flags.logprobs,
                 "Log-probabilities of each token and its N best rivals (needs --json to be seen)")
      ->group(kGroup);
  app.add_option("--prompt-logprobs", flags.prompt_logprobs,
                 "The same of the prompt, or of the question over a document")
      ->group(kGroup);
  app.add_flag("--echo", flags.echo, "Print the prompt, or the question, before the answer")
      ->group(kGroup);
}

void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest* request) {
  v1::SamplingParams* sampling = request->mutable_sampling();
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  for (const std::string& text : flags.logit_bias) {
    const auto [id, bias] = *ReadBias(text);
    v1::TokenBias* const entry = sampling->add_logit_bias();
    entry->set_token_id(id);
    entry->set_bias(bias);
  }
  for (const std::string& word : flags.bad_words) sampling->add_bad_words(word);
  if (flags.seed) sampling->set_seed(*flags.seed);
  ApplyConstraintFlags(flags, request);
  v1::StoppingCriteria* stopping = request->mutable_stopping();
  if (flags.max_new_tokens) stopping->set_max_new_tokens(*flags.max_new_tokens);
  if (flags.min_new_tokens) stopping->set_min_new_tokens(*flags.min_new_tokens);
  for (const std::string& stop : flags.stop) stopping->add_stop(stop);
  stopping->set_ignore_eos(flags.ignore_eos);
  if (flags.logprobs) {
    request->mutable_response()->set_logprobs(true);
    request->mutable_response()->set_top_logprobs(*flags.logprobs);
  }
  if (flags.prompt_logprobs) {
    request->mutable_response()->set_prompt_logprobs(true);
    request->mutable_response()->set_prompt_top_logprobs(*flags.prompt_logprobs);
  }
  request->mutable_response()->set_echo(flags.echo);
}

}  // namespace folio::cli
