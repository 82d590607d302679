#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tools/bench_streams.h"
#include "engine/tools/device_bench/ceilings.h"
#include "nlohmann/json.hpp"

namespace folio {

// What a measurement works with.
struct BenchContext {
  LoadedModel* model;
  BenchStreams streams;
  Ceilings ceilings;
  int repetitions;  // steps of which the median counts
};

// One figure or a few of one kind, in some seconds, whatever ran before. Names are paths:
// "decode/full/1x4096".
struct Measurement {
  std::string name;
  std::function<absl::StatusOr<nlohmann::ordered_json>(BenchContext&)> run;
};

// Lengths are divided by `scale`, for a try on a small machine; `step_tokens` is the size of a
// prefill step.
std::vector<Measurement> CeilingMeasurements();
std::vector<Measurement> DecodeMeasurements(int64_t scale);
std::vector<Measurement> PrefillMeasurements(int64_t scale, int step_tokens);
std::vector<Measurement> TierMeasurements(int64_t scale, int step_tokens);
std::vector<Measurement> VerbMeasurements(int64_t scale, int step_tokens);

// `tokens` / scale, but 64 at least.
inline int64_t Scaled(int64_t tokens, int64_t scale) {
  return std::max<int64_t>(64, tokens / scale);
}

}  // namespace folio
