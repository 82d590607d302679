#include "loadtest/options.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/credential_flags.h"
#include "client/strategy.h"

namespace folio::loadtest {
namespace {

// Adds an option whose text is read by `parse` into `value`.
template <typename Value>
CLI::Option* AddParsed(CLI::App& app, const std::string& name, Value& value,
                       absl::StatusOr<Value> (*parse)(const std::string&),
                       const std::string& description) {
  return app.add_option_function<std::string>(
      name,
      [&value, parse, name](const std::string& text) {
        absl::StatusOr<Value> parsed = parse(text);
        if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
        value = *std::move(parsed);
      },
      description);
}

void AddLoadOptions(CLI::App& app, Options& o) {
  constexpr char kGroup[] = "Load";
  CLI::Option* rate =
      app.add_option("--rate", o.rate, "Open loop: arrivals per second")->group(kGroup);
  rate->check(CLI::PositiveNumber);
  app.add_option("--burstiness", o.burstiness,
                 "Open loop: shape of the Gamma gaps; 1 = Poisson, less = bursts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--concurrency", o.concurrency, "Closed loop: requests at the same time")
      ->check(CLI::Range(1, 100000))
      ->excludes(rate)
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--num-requests", o.num_requests, "Requests after the warm-up (default 100)")
      ->check(CLI::PositiveNumber)
      ->group(kGroup);
  app.add_option("--duration", o.duration_seconds, "Seconds after the warm-up")
      ->check(CLI::PositiveNumber)
      ->group(kGroup);
  app.add_option("--warmup", o.warmup_seconds, "Seconds that are not measured")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--probe-rate", o.probe_rate, "Small requests per second beside the load")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(kGroup);
}

void AddRequestOptions(CLI::App& app, Options& o) {
  constexpr char kGroup[] = "Requests";
  AddParsed(app, "--strategies", o.strategies, &ParseWeightedNames,
            "full, lm_infinite, long_heads or default, with weights: full:1,long_heads:3")
      ->group(kGroup);
  AddParsed(app, "--prompt-tokens", o.prompt_tokens, &ParseWeightedCounts,
            "Lengths of prompts with weights: 64:0.8,4096:0.2")
      ->group(kGroup);
  AddParsed(app, "--output-tokens", o.output_tokens, &ParseWeightedCounts,
            "Lengths of answers with weights")
      ->group(kGroup);
  app.add_flag("--ignore-eos,!--stop-at-eos", o.ignore_eos, "Whether answers have the full length")
      ->group(kGroup);
  app.add_option("--sampled-fraction", o.sampled_fraction, "Share of requests that are not greedy")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--cancel-fraction", o.cancel_fraction, "Share of requests that are cancelled")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--cancel-delay", o.max_cancel_delay_seconds,
                 "Cancel at a uniform time up to so many seconds after sending")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--timeout", o.timeout_seconds, "Deadline of a request in seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--seed", o.seed, "Equal seeds give equal requests at equal times")
      ->capture_default_str()
      ->group(kGroup);
}

void AddCheckOptions(CLI::App& app, Options& o) {
  constexpr char kGroup[] = "Checks and results";
  AddParsed(app, "--goodput", o.goodput, &ParseGoodput,
            "Limits of a good request in milliseconds: ttft:500,tpot:50,e2el:5000")
      ->group(kGroup);
  app.add_option("--heartbeat-ms", o.heartbeat_interval_ms, "Longest silence asked of the server")
      ->check(CLI::Range(100, 60000))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--silence-slack-ms", o.silence_slack_ms, "Longer silence that is forgiven")
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag("--verify-greedy", o.verify_greedy,
               "Repeat every finished greedy request alone and compare the tokens")
      ->group(kGroup);
  app.add_flag("--json", o.json, "Write the result as JSON to stdout instead of a table")
      ->group(kGroup);
  app.add_option("--output", o.output, "Also write the result as JSON to this file")->group(kGroup);
}

// Splits "a:1,b:2" into pairs of text and weight.
absl::StatusOr<WeightedNames> SplitPairs(const std::string& text) {
  WeightedNames pairs;
  for (const auto part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> fields = absl::StrSplit(part, ':');
    double weight = 1.0;
    const bool bad_weight = fields.size() == 2 && (!absl::SimpleAtod(fields[1], &weight) ||
                                                   !std::isfinite(weight) || weight <= 0);
    if (fields.size() > 2 || fields[0].empty() || bad_weight) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not value:number with a number above 0"));
    }
    pairs.emplace_back(fields[0], weight);
  }
  return pairs;
}

}  // namespace

absl::StatusOr<WeightedNames> ParseWeightedNames(const std::string& text) {
  absl::StatusOr<WeightedNames> names = SplitPairs(text);
  if (!names.ok()) return names;
  for (const auto& [name, weight] : *names) {
    if (name == "default") continue;
    const auto strategy = client::ParseStrategy(name);
    if (!strategy.ok()) return strategy.status();
  }
  return names;
}

absl::StatusOr<WeightedCounts> ParseWeightedCounts(const std::string& text) {
  const absl::StatusOr<WeightedNames> pairs = SplitPairs(text);
  if (!pairs.ok()) return pairs.status();
  WeightedCounts counts;
  for (const auto& [name, weight] : *pairs) {
    uint32_t count = 0;
    if (!absl::SimpleAtoi(name, &count) || count == 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a number of tokens"));
    }
    counts.emplace_back(count, weight);
  }
  return counts;
}

absl::StatusOr<Goodput> ParseGoodput(const std::string& text) {
  const absl::StatusOr<WeightedNames> pairs = SplitPairs(text);
  if (!pairs.ok()) return pairs.status();
  Goodput goodput;
  for (const auto& [name, limit_ms] : *pairs) {
    if (name == "ttft") {
      goodput.ttft_ms = limit_ms;
    } else if (name == "tpot") {
      goodput.tpot_ms = limit_ms;
    } else if (name == "e2el") {
      goodput.e2el_ms = limit_ms;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is not one of ttft, tpot and e2el"));
    }
  }
  return goodput;
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--server", options.server, "host:port of the server")
      ->envname("FOLIO_SERVER")
      ->capture_default_str();
  client::AddCredentialFlags(&app, &options.credentials);
  app.add_option("--connections", options.connections,
                 "Connections that requests go over in turn: a server limits the calls of each")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddLoadOptions(app, options);
  AddRequestOptions(app, options);
  AddCheckOptions(app, options);
}

absl::Status FinishOptions(Options* options) {
  if (!options->num_requests && !options->duration_seconds) options->num_requests = 100;
  if (options->verify_greedy && options->sampled_fraction >= 1.0) {
    return absl::InvalidArgumentError("--verify-greedy needs greedy requests");
  }
  return absl::OkStatus();
}

}  // namespace folio::loadtest
