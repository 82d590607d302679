// folio-bench: prefill and decode of the engine without the network, per strategy and depth, beside
// the memory bandwidth and the arithmetic that the same threads reach in the same run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/memory_info.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_maker.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/bench_streams.h"
#include "engine/tools/machine_meter.h"

ABSL_FLAG(std::string, device, "auto", "auto, cpu or cuda");
ABSL_FLAG(std::string, model, "", "Hugging Face directory, without tokenizer; or synthetic:NAME");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::string, cpu_isa, "auto", "kernels of the CPU backend, as --cpu-isa of the server");
ABSL_FLAG(std::string, strategies, "full,lm_infinite,long_heads",
          "strategies to measure; parameters as long_heads:scorer=mean_key:chunk_size=64");
ABSL_FLAG(std::string, depths, "0,2048,32768", "tokens in the cache");
ABSL_FLAG(int, prefill_tokens, 512, "tokens of the measured prefill, 0: none");
ABSL_FLAG(
    int, streams, 0,
    "decode that many streams in one batch, strategies and depths dealt among them in turn; 0: "
    "one stream for each strategy and depth");
ABSL_FLAG(int, decode_tokens, 16, "tokens of each measured decode");
ABSL_FLAG(int, rounds, 3, "repetitions; the median is printed");
ABSL_FLAG(std::string, weight_dtype, "auto", "auto, fp32, bf16, int8 or int4");
ABSL_FLAG(int, weight_group, 0,
          "inputs that share a scale: 32, 64 or 128; 0: 128 of int8, 32 of int4");
ABSL_FLAG(std::string, kv_dtype, "auto", "auto, fp32, bf16, int8 or int4");
ABSL_FLAG(bool, json, false, "one JSON object for the run, then one per row");

namespace folio {
namespace {

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::vector<std::string> SplitFlag(const std::string& value) { return absl::StrSplit(value, ','); }

// NAME[:PARAMETER=VALUE]...; whoever resolves it says what is wrong with it.
StrategySpec ParseStrategy(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  StrategySpec spec{parts[0], {}};
  for (size_t n = 1; n < parts.size(); ++n) {
    const std::pair<std::string, std::string> param =
        absl::StrSplit(parts[n], absl::MaxSplits('=', 1));
    ParamValue value = param.second;
    if (int64_t whole = 0; absl::SimpleAtoi(param.second, &whole)) {
      value = whole;
    } else if (double real = 0; absl::SimpleAtod(param.second, &real)) {
      value = real;
    }
    spec.params.emplace_back(param.first, value);
  }
  return spec;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct StreamKind {
  std::string strategy;
  int64_t depth = 0;
};

// Every strategy at every depth, again and again.
std::vector<StreamKind> DealtStreams(int count, const std::vector<std::string>& strategies,
                                     const std::vector<int64_t>& depths) {
  std::vector<StreamKind> kinds;
  kinds.reserve(count);
  for (int i = 0; i < count; ++i) {
    kinds.push_back({strategies[i / depths.size() % strategies.size()], depths[i % depths.size()]});
  }
  return kinds;
}

struct Row {
  std::string strategy;
  int64_t depth = 0;  // of a batch the mean
  int streams = 1;
  double decode_tokens_per_s = 0;       // of all streams, by the median step of the median round
  double decode_mean_tokens_per_s = 0;  // by all tokens
  double decode_longest_s = 0;
  double decode_bytes = 0;  // per step
  double read_bytes_per_s = 0;
  double prefill_tokens_per_s = 0;
  double prefill_flops = 0;  // per token
  double peak_flops_per_s = 0;
  double matrix_unit_flops_per_s = 0;  // 0: there is none

  double decode_bytes_per_s() const { return decode_bytes * decode_tokens_per_s / streams; }
  double prefill_flops_per_s() const { return prefill_flops * prefill_tokens_per_s; }
};

class Bench {
 public:
  Bench(LoadedModel* model, int threads) : model_(model), meter_(threads) {}

  // One stream: its decode and the prefill of a prompt.
  absl::StatusOr<Row> Measure(const std::string& strategy, int64_t depth) {
    Row row{.strategy = strategy, .depth = depth};
    const StreamKind kind{strategy, depth};
    Samples samples;
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      FOLIO_RETURN_IF_ERROR(Decode(std::span(&kind, 1), &row, &samples));
      if (absl::GetFlag(FLAGS_prefill_tokens) > 0) {
        FOLIO_RETURN_IF_ERROR(Prefill(kind, &row, &samples));
      }
    }
    Sum(samples, &row);
    return row;
  }

  // The decode of a batch.
  absl::StatusOr<Row> MeasureBatch(std::span<const StreamKind> kinds) {
    Row row{.strategy = "batch", .depth = 0, .streams = static_cast<int>(kinds.size())};
    for (const StreamKind& kind : kinds) row.depth += kind.depth;
    row.depth /= row.streams;
    Samples samples;
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      FOLIO_RETURN_IF_ERROR(Decode(kinds, &row, &samples));
    }
    Sum(samples, &row);
    return row;
  }

  // Weights, KV and chunk summaries at their largest.
  int64_t most_stored_bytes() const { return model_->info.weight_bytes + most_kv_bytes_; }

 private:
  // Of each round; seconds of a step, or of a token of a prompt.
  struct Samples {
    std::vector<double> decode, decode_mean, read, prefill, peak, matrix_unit;
  };

  absl::Status Decode(std::span<const StreamKind> kinds, Row* row, Samples* samples) {
    std::vector<int> answers;
    row->decode_bytes = streams_.WeightBytes();
    for (const StreamKind& kind : kinds) {
      FOLIO_ASSIGN_OR_RETURN(const int answer,
                             streams_.Add(ParseStrategy(kind.strategy), kind.depth, kind.depth));
      answers.push_back(answer);
    }
    samples->read.push_back(meter_.ReadBytesPerSecond());
    FOLIO_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                           streams_.DecodeSeconds(answers, absl::GetFlag(FLAGS_decode_tokens)));
    samples->decode.push_back(seconds[seconds.size() / 2]);
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    samples->decode_mean.push_back(sum / static_cast<double>(seconds.size()));
    row->decode_longest_s = std::max(row->decode_longest_s, seconds.back());
    samples->read.push_back(meter_.ReadBytesPerSecond());
    for (const int answer : answers) row->decode_bytes += streams_.BytesPerDecode(answer);
    NoteMemory();
    streams_.Clear();
    return absl::OkStatus();
  }

  absl::Status Prefill(const StreamKind& kind, Row* row, Samples* samples) {
    const int tokens = absl::GetFlag(FLAGS_prefill_tokens);
    FOLIO_ASSIGN_OR_RETURN(const int prompt,
                           streams_.Add(ParseStrategy(kind.strategy), kind.depth, kUnbounded));
    row->prefill_flops = streams_.FlopsPerToken(streams_.plan(prompt), kind.depth + tokens / 2);
    const double start = Now();
    FOLIO_RETURN_IF_ERROR(streams_.Step(std::span(&prompt, 1), tokens));
    samples->prefill.push_back((Now() - start) / tokens);
    samples->peak.push_back(meter_.Fp32FlopsPerSecond());
    samples->matrix_unit.push_back(meter_.MatrixUnitFlopsPerSecond());
    NoteMemory();
    streams_.Clear();
    return absl::OkStatus();
  }

  static void Sum(const Samples& samples, Row* row) {
    const std::vector<double>& means = samples.decode_mean;
    row->read_bytes_per_s = Median(samples.read);
    row->decode_tokens_per_s = row->streams / Median(samples.decode);
    row->decode_mean_tokens_per_s = row->streams * static_cast<double>(means.size()) /
                                    std::accumulate(means.begin(), means.end(), 0.0);
    if (samples.prefill.empty()) return;
    row->prefill_tokens_per_s = 1 / Median(samples.prefill);
    row->peak_flops_per_s = Median(samples.peak);
    row->matrix_unit_flops_per_s = Median(samples.matrix_unit);
  }

  void NoteMemory() {
    const KvStore& store = *model_->store;
    most_kv_bytes_ = std::max(most_kv_bytes_, store.used_page_bytes() + store.used_summary_bytes());
  }

  LoadedModel* const model_;
  BenchStreams streams_{model_};
  MachineMeter meter_;
  int64_t most_kv_bytes_ = 0;
};

void Print(const Row& r) {
  const double share = r.decode_bytes_per_s() / r.read_bytes_per_s;
  const double peak_share =
      r.peak_flops_per_s > 0 ? r.prefill_flops_per_s() / r.peak_flops_per_s : 0;
  const double matrix_unit_share = r.prefill_flops_per_s() / r.matrix_unit_flops_per_s;
  if (absl::GetFlag(FLAGS_json)) {
    std::printf(
        "{\"strategy\": \"%s\", \"depth\": %ld, \"streams\": %d, \"decode_tokens_per_s\": %.3f, "
        "\"decode_mean_tokens_per_s\": %.3f, \"decode_longest_ms\": %.2f, \"decode_gb_per_s\": "
        "%.2f, \"read_gb_per_s\": %.2f, \"bandwidth_share\": %.3f, "
        "\"prefill_tokens_per_s\": %.2f, \"prefill_gflop_per_s\": %.1f, "
        "\"fp32_peak_gflop_per_s\": %.1f, \"peak_share\": %.3f, ",
        r.strategy.c_str(), long(r.depth), r.streams, r.decode_tokens_per_s,
        r.decode_mean_tokens_per_s, 1e3 * r.decode_longest_s, r.decode_bytes_per_s() / 1e9,
        r.read_bytes_per_s / 1e9, share, r.prefill_tokens_per_s, r.prefill_flops_per_s() / 1e9,
        r.peak_flops_per_s / 1e9, peak_share);
    if (r.matrix_unit_flops_per_s > 0) {
      std::printf("\"matrix_unit_gflop_per_s\": %.1f, \"matrix_unit_share\": %.3f, ",
                  r.matrix_unit_flops_per_s / 1e9, matrix_unit_share);
    }
    std::printf("\"peak_rss_bytes\": %ld}\n", long(PeakResidentBytes()));
  } else {
    std::printf("%-12s %8ld %10.2f %8.1f %8.1f %7.0f %% %10.1f %9.1f %7.0f %%", r.strategy.c_str(),
                long(r.depth), r.decode_tokens_per_s, r.decode_bytes_per_s() / 1e9,
                r.read_bytes_per_s / 1e9, 100 * share, r.prefill_tokens_per_s,
                r.prefill_flops_per_s() / 1e9, 100 * peak_share);
    if (r.matrix_unit_flops_per_s > 0) {
      std::printf("  %.0f %% of the matrix unit", 100 * matrix_unit_share);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

absl::Status MeasureAll(Bench* bench) {
  const std::vector<std::string> strategies = SplitFlag(absl::GetFlag(FLAGS_strategies));
  std::vector<int64_t> depths;
  for (const std::string& text : SplitFlag(absl::GetFlag(FLAGS_depths))) {
    if (!absl::SimpleAtoi(text, &depths.emplace_back()) || depths.back() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no depth"));
    }
  }
  if (const int streams = absl::GetFlag(FLAGS_streams); streams > 0) {
    FOLIO_ASSIGN_OR_RETURN(const Row row,
                           bench->MeasureBatch(DealtStreams(streams, strategies, depths)));
    Print(row);
    return absl::OkStatus();
  }
  for (const std::string& strategy : strategies) {
    for (const int64_t depth : depths) {
      FOLIO_ASSIGN_OR_RETURN(const Row row, bench->Measure(strategy, depth));
      Print(row);
    }
  }
  return absl::OkStatus();
}

int Main() {
  EngineOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.device = absl::GetFlag(FLAGS_device);
  options.make_cuda = CudaMaker();
  options.num_threads = absl::GetFlag(FLAGS_threads);
  options.cpu_isa = absl::GetFlag(FLAGS_cpu_isa);
  options.weight_dtype = absl::GetFlag(FLAGS_weight_dtype);
  options.weight_group = absl::GetFlag(FLAGS_weight_group);
  options.kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  options.step_tokens = std::max(64, absl::GetFlag(FLAGS_prefill_tokens));
  options.prefill_share_tokens = options.step_tokens;
  options.max_running_requests = std::max(1, absl::GetFlag(FLAGS_streams));
  const double start = Now();
  auto model = LoadModel(options, /*tokenizer_required=*/false);
  const double load_seconds = Now() - start;
  if (!model.ok()) {
    std::fprintf(stderr, "folio-bench: %s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  const EngineInfo& info = (*model)->info;
  if (absl::GetFlag(FLAGS_json)) {
    std::printf(
        "{\"run\": {\"model\": \"%s\", \"backend\": \"%s\", \"threads\": %d, \"weights\": \"%s\", "
        "\"kv\": \"%s\", \"page_tokens\": %d, \"load_seconds\": %.3f}}\n",
        info.model_name.c_str(), info.backend.c_str(), info.num_threads, info.weight_dtype.c_str(),
        info.kv_dtype.c_str(), info.page_tokens, load_seconds);
    std::fflush(stdout);
  } else {
    std::printf(
        "%s%s: %s, %d threads, weights %s (%.2f GB), KV %s, pages of %d tokens; loaded in %.2f s\n",
        info.model_name.c_str(), info.synthetic ? " (synthetic weights)" : "", info.backend.c_str(),
        info.num_threads, info.weight_dtype.c_str(), static_cast<double>(info.weight_bytes) / 1e9,
        info.kv_dtype.c_str(), info.page_tokens, load_seconds);
    std::printf("%-12s %8s %10s %8s %8s %9s %10s %9s %9s\n", "strategy", "depth", "decode t/s",
                "GB/s", "read", "of read", "prefill", "GFLOP/s", "of fp32");
  }
  Bench bench(model->get(), info.num_threads);
  if (const absl::Status status = MeasureAll(&bench); !status.ok()) {
    std::fprintf(stderr, "folio-bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  if (!absl::GetFlag(FLAGS_json)) {
    std::printf(
        "peak resident memory %.2f GB without the buffer of the read meter; weights and KV %.2f "
        "GB\n",
        static_cast<double>(PeakResidentBytes() - MachineMeter::kBufferBytes) / 1e9,
        static_cast<double>(bench.most_stored_bytes()) / 1e9);
  }
  return 0;
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures prefill and decode of a model directory.");
  absl::ParseCommandLine(argc, argv);
  return folio::Main();
}
