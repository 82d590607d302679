// The command line of the load generator.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace folio::loadtest {

// Values with weights, written "value:weight,value:weight"; a weight that is left out is 1.
using WeightedNames = std::vector<std::pair<std::string, double>>;
using WeightedCounts = std::vector<std::pair<uint32_t, double>>;

// Limits that a good request keeps, in milliseconds.
struct Goodput {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
};

struct Options {
  std::string server = "localhost:50051";
  client::Credentials credentials;
  // Requests go over them in turn.
  int connections = 1;
  // Open loop if set, else closed loop with `concurrency` requests at a time.
  std::optional<double> rate;
  double burstiness = 1.0;
  int concurrency = 4;
  // The run ends with whichever comes first; neither set means 100 requests.
  std::optional<uint64_t> num_requests;
  std::optional<double> duration_seconds;
  double warmup_seconds = 0;

  WeightedNames strategies = {{"default", 1.0}};
  WeightedCounts prompt_tokens = {{64, 1.0}};
  WeightedCounts output_tokens = {{32, 1.0}};
  bool ignore_eos = true;
  // Share of requests that sample (temperature 0.8, own seed); the others are greedy.
  double sampled_fraction = 0;
  double cancel_fraction = 0;
  double max_cancel_delay_seconds = 2.0;
  double probe_rate = 0;
  uint32_t probe_prompt_tokens = 16;
  uint32_t probe_output_tokens = 4;

  double timeout_seconds = 300;
  uint32_t heartbeat_interval_ms = 1000;
  uint32_t silence_slack_ms = 1000;
  uint64_t seed = 1;
  Goodput goodput;
  bool verify_greedy = false;
  bool json = false;
  std::string output;

  bool open_loop() const { return rate.has_value(); }
};

// Adds all options; `options` must outlive the parsing of `app`. Texts with weights and limits are
// read while parsing, and refused as CLI::ValidationError.
void AddOptions(CLI::App& app, Options& options);

// Fills in what follows from other options.  Errors: INVALID_ARGUMENT.
absl::Status FinishOptions(Options* options);

// Errors of the parsers: INVALID_ARGUMENT, with the part that is wrong.
absl::StatusOr<WeightedNames> ParseWeightedNames(const std::string& text);
absl::StatusOr<WeightedCounts> ParseWeightedCounts(const std::string& text);
// "ttft:500,tpot:50,e2el:5000"; limits may be left out.
absl::StatusOr<Goodput> ParseGoodput(const std::string& text);

}  // namespace folio::loadtest
