// Steps of a device whose complete pages lie in the host's memory (--kv_host_bytes), with what they
// bring from there, beside the rate of plain copies over the same link. Without that flag the same
// steps with everything on the device.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tools/device_bench/clock.h"
#include "engine/tools/device_bench/measurement.h"

namespace folio {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDepth = 131072;
constexpr int64_t kPrefillDepth = 262144;
constexpr int kCopies = 32;
constexpr int kPrefillSteps = 3;

struct TierCase {
  const char* name;
  StrategySpec strategy;
};
const TierCase kCases[] = {
    {"long_heads", {"long_heads", {}}},
    {"long_heads_group", {"long_heads", {{"share", "group"}}}},
    {"full", {"full", {}}},
};

// Bytes per second of whole pages between the device and the memory of the host that it copies from
// and to by itself; 0: there is no such tier.
double HostCopyRate(BenchContext& bench) {
  const KvStore& store = *bench.model->store;
  if (store.home() != Tier::kHost) return 0;
  Backend* backend = bench.model->backend.get();
  const FrameMemory frames = store.frame_memory();
  const double seconds = MedianSeconds([&] {
    for (int n = 0; n < kCopies; ++n) backend->host_tier()->WriteHome(0, frames.Frame(0));
    backend->memory()->Read(reinterpret_cast<const float*>(frames.Frame(0)), 1);
  });
  return kCopies * static_cast<double>(frames.frame_bytes) / seconds;
}

// What `steps` steps have read since `before`, per step.
Json ReadsPerStep(const SliceReads& before, const SliceReads& after, int steps) {
  const auto per_step = [&](int64_t a, int64_t b) { return static_cast<double>(b - a) / steps; };
  return {{"slice_hits", per_step(before.hits, after.hits)},
          {"slice_misses", per_step(before.misses, after.misses)},
          {"host_bytes", per_step(before.bytes_in, after.bytes_in)}};
}

absl::StatusOr<Json> DecodeOverTier(const TierCase& one, int64_t depth, BenchContext& bench) {
  const double copy = HostCopyRate(bench);
  const KvStore& store = *bench.model->store;
  // Heads choose other chunks in each step.
  BenchStreams streams(bench.model, BenchStreams::Content::kVaried);
  FOLIO_ASSIGN_OR_RETURN(const int stream, streams.Add(one.strategy, depth, depth));
  // Records the step, and fills the cache with what stays in it.
  FOLIO_RETURN_IF_ERROR(streams.SecondsPerDecode({&stream, 1}, 1).status());
  const SliceReads before = store.reads();
  FOLIO_ASSIGN_OR_RETURN(const double seconds,
                         streams.SecondsPerDecode({&stream, 1}, bench.repetitions));
  Json values = {{"tokens_per_s", 1 / seconds},
                 {"step_seconds", seconds},
                 {"host_copy_bytes_per_s", copy},
                 {"stored_bytes", streams.StoredBytes(stream)}};
  values.update(ReadsPerStep(before, store.reads(), BenchStreams::StepsOf(bench.repetitions)));
  return values;
}

// Steps of a prompt far behind its begin; what they bring, as a share of the text's cache.
absl::StatusOr<Json> PrefillOverTier(const TierCase& one, int64_t depth, int step_tokens,
                                     BenchContext& bench) {
  const double copy = HostCopyRate(bench);
  const KvStore& store = *bench.model->store;
  const int count = static_cast<int>(std::min<int64_t>(step_tokens, depth));
  FOLIO_ASSIGN_OR_RETURN(
      const int stream,
      bench.streams.Add(one.strategy, depth, depth + int64_t{kPrefillSteps + 1} * count));
  FOLIO_RETURN_IF_ERROR(bench.streams.Step({&stream, 1}, count));
  const SliceReads before = store.reads();
  const double start = NowSeconds();
  for (int n = 0; n < kPrefillSteps; ++n) {
    FOLIO_RETURN_IF_ERROR(bench.streams.Step({&stream, 1}, count));
  }
  const double seconds = (NowSeconds() - start) / kPrefillSteps;
  const auto stored = static_cast<double>(bench.streams.StoredBytes(stream));
  Json values = {{"tokens_per_s", count / seconds},
                 {"step_seconds", seconds},
                 {"host_copy_bytes_per_s", copy},
                 {"stored_bytes", stored}};
  values.update(ReadsPerStep(before, store.reads(), kPrefillSteps));
  values["reads_of_text"] = values["host_bytes"].get<double>() / stored;
  return values;
}

}  // namespace

std::vector<Measurement> TierMeasurements(int64_t scale, int step_tokens) {
  std::vector<Measurement> measurements;
  for (const TierCase& one : kCases) {
    measurements.push_back(
        {absl::StrCat("tiers/decode/", one.name, "/", kDepth),
         [=](BenchContext& bench) { return DecodeOverTier(one, Scaled(kDepth, scale), bench); }});
  }
  for (const TierCase& one : kCases) {
    measurements.push_back(
        {absl::StrCat("tiers/prefill/", one.name, "/", kPrefillDepth), [=](BenchContext& bench) {
           return PrefillOverTier(one, Scaled(kPrefillDepth, scale), step_tokens, bench);
         }});
  }
  return measurements;
}

}  // namespace folio
