// Tokens per second of answers: by strategy, number of streams and depth, and of a mixed batch.
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tools/device_bench/measurement.h"

namespace folio {
namespace {

using Json = nlohmann::ordered_json;

struct DecodeCase {
  const char* strategy;
  int streams;
  int64_t depth;
};
constexpr DecodeCase kCases[] = {
    {"full", 1, 4096},         {"full", 8, 4096},          {"full", 32, 4096},
    {"full", 1, 32768},        {"full", 1, 131072},        {"lm_infinite", 1, 4096},
    {"lm_infinite", 32, 4096}, {"lm_infinite", 1, 131072}, {"long_heads", 1, 4096},
    {"long_heads", 32, 4096},  {"long_heads", 1, 32768},   {"long_heads", 1, 131072},
};
constexpr int kMixedStreams = 16;

absl::StatusOr<Json> Decode(const DecodeCase& one, int64_t depth, BenchContext& bench) {
  FOLIO_ASSIGN_OR_RETURN(const double copy, bench.ceilings.CopyBytesPerSecond());
  std::vector<int> streams;
  for (int n = 0; n < one.streams; ++n) {
    FOLIO_ASSIGN_OR_RETURN(const int stream, bench.streams.Add({one.strategy, {}}, depth, depth));
    streams.push_back(stream);
  }
  FOLIO_ASSIGN_OR_RETURN(const double seconds,
                         bench.streams.SecondsPerDecode(streams, bench.repetitions));
  double bytes = bench.streams.WeightBytes();
  int64_t stored = 0;
  for (const int stream : streams) {
    bytes += bench.streams.BytesPerDecode(stream);
    stored += bench.streams.StoredBytes(stream);
  }
  return Json{{"tokens_per_s", one.streams / seconds},
              {"step_seconds", seconds},
              {"step_bytes", bytes},
              {"of_copy", bytes / seconds / copy},
              {"stored_bytes", stored}};
}

// 16 streams of 4k to 32k under three strategies, together and by strategy.
absl::StatusOr<Json> DecodeMixed(int64_t scale, BenchContext& bench) {
  const char* const kStrategies[] = {"full", "lm_infinite", "long_heads"};
  std::map<std::string, std::vector<int>> groups;
  std::vector<int> all;
  for (int n = 0; n < kMixedStreams; ++n) {
    const std::string strategy = kStrategies[n % 3];
    const int64_t depth = Scaled(4096 << (n / 3 % 4), scale);
    FOLIO_ASSIGN_OR_RETURN(const int stream, bench.streams.Add({strategy, {}}, depth, depth));
    groups[strategy].push_back(stream);
    all.push_back(stream);
  }
  FOLIO_ASSIGN_OR_RETURN(const double together,
                         bench.streams.SecondsPerDecode(all, bench.repetitions));
  double apart = 0;
  for (const auto& [strategy, streams] : groups) {
    FOLIO_ASSIGN_OR_RETURN(const double seconds,
                           bench.streams.SecondsPerDecode(streams, bench.repetitions));
    apart += seconds;
  }
  return Json{{"tokens_per_s", kMixedStreams / together},
              {"step_seconds", together},
              {"step_seconds_by_strategy", apart}};
}

}  // namespace

std::vector<Measurement> DecodeMeasurements(int64_t scale) {
  std::vector<Measurement> measurements;
  for (const DecodeCase& one : kCases) {
    const int64_t depth = Scaled(one.depth, scale);
    measurements.push_back(
        {absl::StrCat("decode/", one.strategy, "/", one.streams, "x", one.depth),
         [one, depth](BenchContext& bench) { return Decode(one, depth, bench); }});
  }
  measurements.push_back({absl::StrCat("decode/mixed/", kMixedStreams),
                          [scale](BenchContext& bench) { return DecodeMixed(scale, bench); }});
  return measurements;
}

}  // namespace folio
