// Where the time of a step goes: seconds on the device of each verb, by the device's own clock, and
// beside them the bytes that it must read. The verbs are launched one by one, so that their sum is
// a little more than a step that is recorded as one graph.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/backend/verb_timer.h"
#include "engine/base/status_macros.h"
#include "engine/tools/device_bench/measurement.h"

namespace folio {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSteps = 4;
// Copies before each step: the device is busy with them until all launches of the step are queued,
// so that it never waits for the host within the step. 8 ms at 4 TB/s.
constexpr int kCopies = 16;
constexpr int64_t kCopyBytes = int64_t{1} << 30;

struct VerbCase {
  const char* kind;
  const char* strategy;
  int streams;
  int64_t depth;
};
constexpr VerbCase kCases[] = {
    {"decode", "full", 1, 4096},          {"decode", "full", 32, 4096},
    {"decode", "long_heads", 1, 131072},  {"decode", "lm_infinite", 1, 131072},
    {"prefill", "full", 1, 28672},        {"prefill", "long_heads", 1, 28672},
    {"prefill", "lm_infinite", 1, 28672},
};

// Of all calls: 16-bit weights of a product, or the cache that answers read; 0: not counted.
double BytesOf(const VerbTimer::VerbTime& time, double attended_bytes) {
  if (time.verb == "Attend") return attended_bytes;
  const std::vector<std::string> words = absl::StrSplit(time.verb, absl::ByAnyChar(" x"));
  int64_t outputs = 0;
  int64_t inputs = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &outputs) ||
      !absl::SimpleAtoi(words[2], &inputs)) {
    return 0;
  }
  return 2.0 * static_cast<double>(outputs * inputs * time.calls);
}

class Ballast {
 public:
  static absl::StatusOr<Ballast> Create(Memory* memory, int64_t scale) {
    const int64_t bytes = std::max<int64_t>(1 << 10, kCopyBytes / scale);
    FOLIO_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Create(memory, 2 * bytes));
    return Ballast(memory, bytes, std::move(buffer));
  }
  void Copy() {
    std::byte* const base = buffer_.data();
    for (int n = 0; n < kCopies; ++n) memory_->Copy(base, base + bytes_, bytes_);
  }

 private:
  Ballast(Memory* memory, int64_t bytes, Buffer buffer)
      : memory_(memory), bytes_(bytes), buffer_(std::move(buffer)) {}

  Memory* memory_;
  int64_t bytes_;
  Buffer buffer_;
};

absl::StatusOr<Json> Verbs(const VerbCase& one, int64_t scale, int count, BenchContext& bench) {
  Backend& backend = *bench.model->backend;
  auto* const timer = dynamic_cast<VerbTimer*>(&backend);
  if (timer == nullptr) return absl::UnimplementedError("this device has no clock for verbs");
  BenchStreams& streams = bench.streams;
  const int64_t depth = Scaled(one.depth, scale);
  std::vector<int> batch;
  for (int n = 0; n < one.streams; ++n) {
    // To a prompt every token is one of it, to an answer none.
    const int64_t prompt = std::string_view(one.kind) == "decode" ? depth : kUnbounded;
    FOLIO_ASSIGN_OR_RETURN(const int stream, streams.Add({one.strategy, {}}, depth, prompt));
    batch.push_back(stream);
  }
  FOLIO_ASSIGN_OR_RETURN(Ballast ballast, Ballast::Create(backend.memory(), scale));
  FOLIO_RETURN_IF_ERROR(streams.Step(batch, count));  // the first launch of each kernel
  double attended_bytes = 0;
  absl::Status status;
  const std::vector<VerbTimer::VerbTime> times = timer->TimeVerbs([&] {
    for (int n = 0; n < kSteps && status.ok(); ++n) {
      for (const int stream : batch) attended_bytes += streams.BytesPerDecode(stream);
      ballast.Copy();
      status = streams.Step(batch, count);
    }
  });
  FOLIO_RETURN_IF_ERROR(status);
  Json rows = Json::array();
  double total = 0;
  for (const VerbTimer::VerbTime& time : times) {
    total += time.seconds;
    Json row = {
        {"verb", time.verb}, {"calls", time.calls / kSteps}, {"seconds", time.seconds / kSteps}};
    const double bytes = count == 1 ? BytesOf(time, attended_bytes) : 0;
    if (bytes > 0) row["bytes_per_s"] = bytes / time.seconds;
    rows.push_back(std::move(row));
  }
  return Json{{"step_seconds", total / kSteps}, {"verbs", std::move(rows)}};
}

}  // namespace

std::vector<Measurement> VerbMeasurements(int64_t scale, int step_tokens) {
  std::vector<Measurement> measurements;
  for (const VerbCase& one : kCases) {
    const int count = std::string_view(one.kind) == "decode"
                          ? 1
                          : static_cast<int>(std::min<int64_t>(step_tokens, 2048));
    measurements.push_back(
        {absl::StrCat("verbs/", one.kind, "/", one.strategy, "/", one.streams, "x", one.depth),
         [=](BenchContext& bench) { return Verbs(one, scale, count, bench); }});
  }
  return measurements;
}

}  // namespace folio
