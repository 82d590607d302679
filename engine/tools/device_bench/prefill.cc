// Seconds from the first token of a prompt to the first of the answer, and of 128 more.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tools/device_bench/clock.h"
#include "engine/tools/device_bench/measurement.h"

namespace folio {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kAnswer = 128;
constexpr int64_t kLengths[] = {4096, 32768};

absl::StatusOr<Json> Prefill(const char* strategy, int64_t length, int step_tokens,
                             BenchContext& bench) {
  FOLIO_ASSIGN_OR_RETURN(const double peak, bench.ceilings.FlopsPerSecond());
  const int step = static_cast<int>(std::min<int64_t>(step_tokens, length));
  BenchStreams& streams = bench.streams;
  FOLIO_ASSIGN_OR_RETURN(const int warm, streams.Add({strategy, {}}, 0, length));
  FOLIO_RETURN_IF_ERROR(streams.Step(std::span(&warm, 1), step));
  FOLIO_ASSIGN_OR_RETURN(const int stream, streams.Add({strategy, {}}, 0, length));
  const double start = NowSeconds();
  double flops = 0;
  while (streams.position(stream) < length) {
    const int count = static_cast<int>(std::min<int64_t>(step, length - streams.position(stream)));
    flops +=
        count * streams.FlopsPerToken(streams.plan(stream), streams.position(stream) + count / 2);
    FOLIO_RETURN_IF_ERROR(streams.Step(std::span(&stream, 1), count));
  }
  const double seconds = NowSeconds() - start;
  for (int n = 0; n < kAnswer; ++n) {
    FOLIO_RETURN_IF_ERROR(streams.Step(std::span(&stream, 1), 1));
  }
  return Json{{"tokens_per_s", static_cast<double>(length) / seconds},
              {"seconds", seconds},
              {"seconds_with_128_tokens", NowSeconds() - start},
              {"flops", flops},
              {"of_product", flops / seconds / peak}};
}

}  // namespace

std::vector<Measurement> PrefillMeasurements(int64_t scale, int step_tokens) {
  std::vector<Measurement> measurements;
  for (const int64_t length : kLengths) {
    for (const char* strategy : {"full", "lm_infinite", "long_heads"}) {
      measurements.push_back(
          {absl::StrCat("prefill/", strategy, "/", length), [=](BenchContext& bench) {
             return Prefill(strategy, Scaled(length, scale), step_tokens, bench);
           }});
    }
  }
  return measurements;
}

}  // namespace folio
