// folio-device-bench: the speed that one GPU is judged by, each figure as a share of a ceiling that
// the same run measures: the rate of a copy in device memory, and of a large matrix product.
// --scale 64 divides lengths, for a try on a small machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_maker.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/bench_streams.h"

ABSL_FLAG(std::string, device, "cuda", "auto, cpu or cuda");
ABSL_FLAG(std::string, model, "synthetic:llama-2-7b", "Hugging Face directory, or synthetic:NAME");
ABSL_FLAG(int64_t, scale, 1, "what lengths are divided by");
ABSL_FLAG(int, step_tokens, 2048, "tokens of a prefill step");
ABSL_FLAG(int, repetitions, 20, "steps of which the median counts");
ABSL_FLAG(std::string, json, "", "file for the figures, one JSON object per line");

namespace folio {
namespace {

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

int64_t Scaled(int64_t tokens) {
  return std::max<int64_t>(64, tokens / absl::GetFlag(FLAGS_scale));
}

class DeviceBench {
 public:
  explicit DeviceBench(LoadedModel* model) : model_(model), streams_(model) {}

  absl::Status Run() {
    FOLIO_RETURN_IF_ERROR(MeasureCeilings());
    FOLIO_RETURN_IF_ERROR(Decode());
    FOLIO_RETURN_IF_ERROR(Mixed());
    return Prefill();
  }

 private:
  void Add(const std::string& name, double value, const std::string& unit, double goal = 0) {
    const std::string judged =
        goal == 0 ? "" : absl::StrFormat("goal %.3g: %s", goal, value >= goal ? "met" : "MISSED");
    std::printf("%-58s %10.4g %-10s %s\n", name.c_str(), value, unit.c_str(), judged.c_str());
    std::fflush(stdout);
    const std::string path = absl::GetFlag(FLAGS_json);
    if (path.empty()) return;
    if (FILE* file = std::fopen(path.c_str(), "a")) {
      std::fprintf(file, "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"goal\": %g}\n",
                   name.c_str(), value, unit.c_str(), goal);
      std::fclose(file);
    }
  }

  // The median of seconds per call.
  double Time(const std::function<void()>& work) const {
    std::vector<double> seconds;
    for (int n = 0; n < 12; ++n) {
      const double start = Now();
      work();
      if (n >= 2) seconds.push_back(Now() - start);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  // A copy of 1 GiB and back, eight at a time; and the engine's own product of 16384 x 16384
  // weights with 8192 rows, in which the conversion of the activations is 3 % of the traffic.
  absl::Status MeasureCeilings() {
    Backend& backend = *model_->backend;
    Memory* memory = backend.memory();
    const int64_t bytes =
        std::max<int64_t>(1 << 20, (int64_t{1} << 30) / absl::GetFlag(FLAGS_scale));
    FOLIO_ASSIGN_OR_RETURN(Buffer from, Buffer::Create(memory, bytes));
    FOLIO_ASSIGN_OR_RETURN(Buffer to, Buffer::Create(memory, bytes));
    constexpr int kCopies = 8;
    const double copy_seconds = Time([&] {
      for (int n = 0; n < kCopies; ++n) {
        memory->Copy(to.data(), from.data(), bytes);
      }
      memory->Read(to.as<float>(), 1);
    });
    bandwidth_ = kCopies * 2.0 * bytes / copy_seconds;
    Add("device copy, read and written", bandwidth_ / 1e9, "GB/s");

    const int64_t width = std::max<int64_t>(256, 16384 / absl::GetFlag(FLAGS_scale));
    const int rows = static_cast<int>(std::max<int64_t>(128, 8192 / absl::GetFlag(FLAGS_scale)));
    FOLIO_ASSIGN_OR_RETURN(const auto matrix, backend.PackRandom(width, width, 1, 0.02f));
    FOLIO_ASSIGN_OR_RETURN(auto x, BufferOf<float>::CopyOf(memory, RandomRows(rows * width)));
    FOLIO_ASSIGN_OR_RETURN(auto y, BufferOf<float>::Create(memory, rows * width));
    const double product_seconds = Time([&] {
      for (int n = 0; n < 4; ++n) {
        backend.MatMul(*matrix, x.data(), rows, {}, Backend::Output::kStore, y.data());
      }
      memory->Read(y.data(), 1);
    });
    flops_ = 4 * 2.0 * rows * width * width / product_seconds;
    Add("matrix product, bf16 with fp32 sums", flops_ / 1e12, "TFLOP/s");
    return backend.status();
  }

  static std::vector<float> RandomRows(int64_t count) {
    std::vector<float> values(count);
    uint64_t z = 1;
    for (float& value : values) {
      z = z * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
    }
    return values;
  }

  absl::StatusOr<std::vector<int>> AddStreams(const StrategySpec& strategy, int count,
                                              int64_t depth) {
    std::vector<int> streams;
    for (int n = 0; n < count; ++n) {
      FOLIO_ASSIGN_OR_RETURN(const int stream, streams_.Add(strategy, depth, depth));
      streams.push_back(stream);
    }
    return streams;
  }

  struct Decoded {
    double seconds = 0;
    double share = 0;  // of the copy's rate
    int64_t stored = 0;
  };
  absl::StatusOr<Decoded> DecodeOf(const StrategySpec& strategy, int count, int64_t depth) {
    FOLIO_ASSIGN_OR_RETURN(const std::vector<int> streams, AddStreams(strategy, count, depth));
    Decoded result;
    FOLIO_ASSIGN_OR_RETURN(result.seconds,
                           streams_.SecondsPerDecode(streams, absl::GetFlag(FLAGS_repetitions)));
    double bytes = streams_.WeightBytes();
    for (const int stream : streams) {
      bytes += streams_.BytesPerDecode(stream);
      result.stored += streams_.StoredBytes(stream);
    }
    result.share = bytes / result.seconds / bandwidth_;
    streams_.Clear();
    return result;
  }

  absl::Status Decode() {
    const int64_t short_depth = Scaled(4096);
    const int64_t long_depth = Scaled(131072);
    FOLIO_ASSIGN_OR_RETURN(const Decoded one, DecodeOf({"full", {}}, 1, short_depth));
    Add("decode, 1 stream at 4k, full", 1 / one.seconds, "tokens/s");
    Add("  of the copy's rate", one.share, "", 0.85);
    FOLIO_ASSIGN_OR_RETURN(const Decoded many, DecodeOf({"full", {}}, 32, short_depth));
    Add("decode, 32 streams at 4k, full", 32 / many.seconds, "tokens/s");
    Add("  of the copy's rate", many.share, "", 0.75);
    FOLIO_ASSIGN_OR_RETURN(const Decoded full, DecodeOf({"full", {}}, 1, long_depth));
    Add("decode, 1 stream at 128k, full", 1 / full.seconds, "tokens/s");
    Add("  of the copy's rate", full.share, "");
    FOLIO_ASSIGN_OR_RETURN(const Decoded heads, DecodeOf({"long_heads", {}}, 1, long_depth));
    Add("decode, 1 stream at 128k, LongHeads", 1 / heads.seconds, "tokens/s");
    Add("  of full attention at 4k", one.seconds / heads.seconds, "x", 0.9);
    Add("  of full attention at 128k", full.seconds / heads.seconds, "x", 3);
    FOLIO_ASSIGN_OR_RETURN(const Decoded lambda, DecodeOf({"lm_infinite", {}}, 1, long_depth));
    Add("decode, 1 stream at 128k, LM-Infinite", 1 / lambda.seconds, "tokens/s");
    Add("  of full attention at 4k", one.seconds / lambda.seconds, "x", 0.95);
    Add("  KV of full attention per KV of it", static_cast<double>(full.stored) / lambda.stored,
        "x", 25);
    return absl::OkStatus();
  }

  // 16 streams of 4k to 32k under three strategies, together and by strategy.
  absl::Status Mixed() {
    const char* const kStrategies[] = {"full", "lm_infinite", "long_heads"};
    std::map<std::string, std::vector<int>> groups;
    std::vector<int> all;
    for (int n = 0; n < 16; ++n) {
      const std::string strategy = kStrategies[n % 3];
      const int64_t depth = Scaled(4096 << (n / 3 % 4));
      FOLIO_ASSIGN_OR_RETURN(const int stream, streams_.Add({strategy, {}}, depth, depth));
      groups[strategy].push_back(stream);
      all.push_back(stream);
    }
    const int repetitions = absl::GetFlag(FLAGS_repetitions);
    FOLIO_ASSIGN_OR_RETURN(const double together, streams_.SecondsPerDecode(all, repetitions));
    double apart = 0;
    for (const auto& [strategy, streams] : groups) {
      FOLIO_ASSIGN_OR_RETURN(const double seconds, streams_.SecondsPerDecode(streams, repetitions));
      apart += seconds;
    }
    streams_.Clear();
    Add("decode, 16 streams at 4k to 32k, three strategies", 16 / together, "tokens/s");
    Add("  three batches one after the other, per mixed batch", apart / together, "x", 0.85);
    return absl::OkStatus();
  }

  absl::Status Prefill() {
    const int64_t length = Scaled(32768);
    const int step = static_cast<int>(std::min<int64_t>(absl::GetFlag(FLAGS_step_tokens), length));
    const std::pair<const char*, double> kCases[] = {
        {"full", 0.55}, {"lm_infinite", 0.55}, {"long_heads", 0.30}};
    double full_seconds = 0;
    for (const auto& [strategy, goal] : kCases) {
      FOLIO_ASSIGN_OR_RETURN(const int stream, streams_.Add({strategy, {}}, 0, length));
      const double start = Now();
      double flops = 0;
      while (streams_.position(stream) < length) {
        flops += step * streams_.FlopsPerToken(streams_.plan(stream),
                                               streams_.position(stream) + step / 2);
        FOLIO_RETURN_IF_ERROR(streams_.Step(std::span(&stream, 1), step));
      }
      const double seconds = Now() - start;
      if (full_seconds == 0) full_seconds = seconds;
      Add(absl::StrCat("prefill of 32k, ", strategy), seconds, "s");
      Add("  of the product's rate", flops / seconds / flops_, "", goal);
      Add("  times as fast as full", full_seconds / seconds, "x");
      constexpr int kAnswer = 128;
      for (int n = 0; n < kAnswer; ++n) {
        FOLIO_RETURN_IF_ERROR(streams_.Step(std::span(&stream, 1), 1));
      }
      Add(absl::StrCat("prefill of 32k and 128 tokens, ", strategy), Now() - start, "s");
      streams_.Clear();
    }
    return absl::OkStatus();
  }

  LoadedModel* const model_;
  BenchStreams streams_;
  double bandwidth_ = 0;
  double flops_ = 0;
};

int Main() {
  EngineOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.device = absl::GetFlag(FLAGS_device);
  options.make_cuda = CudaMaker();
  options.kv_dtype = "bf16";
  options.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  options.prefill_share_tokens = options.step_tokens;
  options.max_running_requests = 64;
  const double start = Now();
  const auto model = LoadModel(options, /*tokenizer_required=*/false);
  if (!model.ok()) {
    std::fprintf(stderr, "folio-device-bench: %s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  const EngineInfo& info = (*model)->info;
  std::printf("%s%s on %s, weights %s, KV %s, pages of %d tokens; ready after %.1f s\nmemory: %s\n",
              info.model_name.c_str(), info.synthetic ? " (synthetic weights)" : "",
              info.backend.c_str(), info.weight_dtype.c_str(), info.kv_dtype.c_str(),
              info.page_tokens, Now() - start, info.memory_plan.c_str());
  if (const absl::Status status = DeviceBench(model->get()).Run(); !status.ok()) {
    std::fprintf(stderr, "folio-device-bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures a device beside its own ceilings.");
  absl::ParseCommandLine(argc, argv);
  return folio::Main();
}
