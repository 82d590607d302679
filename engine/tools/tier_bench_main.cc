// folio-tier-bench: decode of the engine over a synthetic cache that lies on disk, or for
// comparison in memory: seconds per token, and what was read for it; between the tokens the same
// files are read by plain calls. One JSON object.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/memory_info.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/bench_streams.h"
#include "engine/tools/raw_reads.h"

ABSL_FLAG(std::string, model, "", "Hugging Face directory, without tokenizer; or synthetic:NAME");
ABSL_FLAG(std::string, strategy, "long_heads", "strategy to measure");
ABSL_FLAG(int64_t, depth, 131072, "tokens in the cache");
ABSL_FLAG(int, decode_tokens, 8, "tokens that are measured");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::string, kv_dir, "", "where pages lie; empty: in memory");
ABSL_FLAG(int64_t, kv_bytes, 0, "memory for pages and chunk summaries; 0: what is left");
ABSL_FLAG(
    bool, uncached, false,
    "before each token the system forgets what it has read of the pages; and after it as many "
    "bytes are read by plain calls, so forgotten too");
ABSL_FLAG(std::vector<std::string>, raw_bytes, {"4194304"},
          "bytes of a plain read; one or several");
ABSL_FLAG(int, raw_threads, 2, "plain reads at a time");
ABSL_FLAG(bool, raw_random, false, "plain reads at random places, not in sequence");

namespace folio {
namespace {

// Tokens before those that are measured.
constexpr int kWarmUp = 2;

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Bytes that this process had the disk read, read-ahead of the system included; 0 where the system
// does not say.
int64_t DiskReadBytes() {
  std::ifstream file("/proc/self/io");
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == "read_bytes:") return value;
  }
  return 0;
}

// Of all tokens that were measured.
struct Totals {
  double seconds = 0;
  double seconds_waited = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t missed_bytes = 0;
  int64_t disk_bytes = 0;
  std::vector<double> raw_seconds;  // by the size of the plain reads
};

// Of each size; none if everything may be cached.
absl::StatusOr<std::vector<std::unique_ptr<RawReads>>> OpenRawReads() {
  std::vector<std::unique_ptr<RawReads>> all;
  if (!absl::GetFlag(FLAGS_uncached)) return all;
  for (const std::string& size : absl::GetFlag(FLAGS_raw_bytes)) {
    RawReads::Options options;
    options.num_threads = absl::GetFlag(FLAGS_raw_threads);
    options.random = absl::GetFlag(FLAGS_raw_random);
    if (!absl::SimpleAtoi(size, &options.piece_bytes) || options.piece_bytes < 1) {
      return absl::InvalidArgumentError(absl::StrCat("'", size, "' is no number of bytes"));
    }
    all.push_back(std::make_unique<RawReads>(absl::GetFlag(FLAGS_kv_dir), options));
  }
  return all;
}

absl::StatusOr<Totals> Measure(LoadedModel* model, BenchStreams* streams, int stream, int tokens) {
  FOLIO_ASSIGN_OR_RETURN(auto raw, OpenRawReads());
  const KvStore& store = *model->store;
  Totals totals;
  for (int n = 0; n < tokens; ++n) {
    for (const auto& reads : raw) reads->Forget();
    const SliceReads before = store.reads();
    const int64_t disk_bytes = DiskReadBytes();
    const double start = Now();
    FOLIO_RETURN_IF_ERROR(streams->Step(std::span(&stream, 1), 1));
    totals.seconds += Now() - start;
    totals.disk_bytes += DiskReadBytes() - disk_bytes;
    if (!store.tiered()) continue;
    const SliceReads after = store.reads();
    totals.hits += after.hits - before.hits;
    totals.misses += after.misses - before.misses;
    totals.missed_bytes += after.bytes_in - before.bytes_in;
    totals.seconds_waited += after.seconds_waited - before.seconds_waited;
    for (size_t size = 0; size < raw.size(); ++size) {
      raw[size]->Forget();
      totals.raw_seconds.resize(raw.size());
      totals.raw_seconds[size] += raw[size]->Seconds(after.bytes_in - before.bytes_in);
    }
  }
  return totals;
}

absl::Status Main() {
  EngineOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.num_threads = absl::GetFlag(FLAGS_threads);
  options.kv_dir = absl::GetFlag(FLAGS_kv_dir);
  options.kv_bytes = absl::GetFlag(FLAGS_kv_bytes);
  options.max_running_requests = 1;
  FOLIO_ASSIGN_OR_RETURN(const auto model, LoadModel(options, /*tokenizer_required=*/false));
  BenchStreams streams(model.get(), BenchStreams::Content::kVaried);
  const int64_t depth = absl::GetFlag(FLAGS_depth);
  const double start = Now();
  FOLIO_ASSIGN_OR_RETURN(const int stream,
                         streams.Add({absl::GetFlag(FLAGS_strategy), {}}, depth, depth));
  const double written = Now() - start;
  FOLIO_RETURN_IF_ERROR(Measure(model.get(), &streams, stream, kWarmUp).status());
  const int tokens = absl::GetFlag(FLAGS_decode_tokens);
  FOLIO_ASSIGN_OR_RETURN(const Totals totals, Measure(model.get(), &streams, stream, tokens));
  const KvStore& store = *model->store;
  std::printf(
      "{\"tokens\": %d, \"seconds\": %.6f, \"seconds_waited\": %.6f, "
      "\"raw_seconds\": [%s], \"hits\": %ld, "
      "\"misses\": %ld, \"missed_bytes\": %ld, \"disk_bytes\": %ld, \"slice_bytes\": %ld, "
      "\"stored_bytes\": %ld, \"fill_seconds\": %.1f, \"peak_resident_bytes\": %ld}\n",
      tokens, totals.seconds, totals.seconds_waited,
      absl::StrJoin(totals.raw_seconds, ", ").c_str(), long(totals.hits), long(totals.misses),
      long(totals.missed_bytes), long(totals.disk_bytes), long(store.geometry().slice_bytes()),
      long(streams.StoredBytes(stream)), written, long(PeakResidentBytes()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures decode over a cache that lies on disk.");
  absl::ParseCommandLine(argc, argv);
  if (const absl::Status status = folio::Main(); !status.ok()) {
    std::fprintf(stderr, "folio-tier-bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
