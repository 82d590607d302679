// folio-bench: prefill and decode of the engine without the network, per strategy and depth, beside
// the memory bandwidth and the arithmetic that the same threads reach in the same run. Depth is
// synthetic: the cache is filled with random keys and values, which costs the same as a real
// document and takes seconds instead of hours.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/visible_keys.h"
#include "engine/base/half.h"
#include "engine/base/memory_info.h"
#include "engine/runtime/cuda_maker.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/machine_meter.h"

ABSL_FLAG(std::string, device, "auto", "auto, cpu or cuda");
ABSL_FLAG(std::string, model, "", "Hugging Face directory; tokenizer.model is not needed");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::string, strategies, "full,lm_infinite,long_heads", "strategies to measure");
ABSL_FLAG(std::string, depths, "0,2048,32768", "tokens in the cache");
ABSL_FLAG(int, prefill_tokens, 512, "tokens of the measured prefill, 0: none");
ABSL_FLAG(int, decode_tokens, 16, "tokens of each measured decode");
ABSL_FLAG(int, rounds, 3, "repetitions; the median is printed");
ABSL_FLAG(std::string, kv_dtype, "auto", "auto, fp32 or bf16");
ABSL_FLAG(bool, json, false, "one JSON object per row");

namespace folio {
namespace {

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::vector<std::string> SplitFlag(const std::string& value) { return absl::StrSplit(value, ','); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string strategy;
  int64_t depth = 0;
  double decode_tokens_per_s = 0;
  double decode_bytes_per_s = 0;
  double read_bytes_per_s = 0;
  double prefill_tokens_per_s = 0;
  double prefill_flops_per_s = 0;
  double peak_flops_per_s = 0;
};

class Bench {
 public:
  Bench(LoadedModel* model, int threads) : model_(model), meter_(threads) {}

  Row Measure(const std::string& strategy, int64_t depth) {
    const auto spec = ResolveAttention({{strategy, {}}, {}}, {}, model_->attention, {});
    if (!spec.ok()) {
      std::fprintf(stderr, "folio-bench: %s\n", spec.status().ToString().c_str());
      std::exit(1);
    }
    const AttentionPlan plan = PlanFor(*spec, model_->attention);
    Row row{.strategy = strategy, .depth = depth};
    std::vector<double> decode, read, prefill, peak;
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      SequenceKv kv = Fill(plan, depth);
      read.push_back(meter_.ReadBytesPerSecond());
      int64_t position = depth;
      Run(plan, 1, &position, &kv);  // touches everything once
      const int count = absl::GetFlag(FLAGS_decode_tokens);
      const double start = Now();
      for (int i = 0; i < count; ++i) Run(plan, 1, &position, &kv);
      decode.push_back((Now() - start) / count);
      read.push_back(meter_.ReadBytesPerSecond());
      if (const int tokens = absl::GetFlag(FLAGS_prefill_tokens); tokens > 0) {
        const double prefill_start = Now();
        Run(plan, tokens, &position, &kv);
        prefill.push_back((Now() - prefill_start) / tokens);
        peak.push_back(meter_.Fp32FlopsPerSecond());
      }
      model_->store->Release(&kv);
    }
    row.read_bytes_per_s = Median(read);
    row.decode_tokens_per_s = 1 / Median(decode);
    row.decode_bytes_per_s = BytesPerToken(plan, depth) * row.decode_tokens_per_s;
    if (!prefill.empty()) {
      row.prefill_tokens_per_s = 1 / Median(prefill);
      row.prefill_flops_per_s = FlopsPerToken(plan, depth) * row.prefill_tokens_per_s;
      row.peak_flops_per_s = Median(peak);
    }
    return row;
  }

  // Weights, KV and chunk summaries at their largest.
  int64_t most_stored_bytes() const { return model_->info.weight_bytes + most_kv_bytes_; }

 private:
  // A cache of `depth` random tokens.
  SequenceKv Fill(const AttentionPlan& plan, int64_t depth) {
    SequenceKv kv;
    KvStore& store = *model_->store;
    constexpr int64_t kStep = 512;
    for (int64_t n = 0; n < depth; n += kStep) {
      const int64_t count = std::min(kStep, depth - n);
      if (!store.Extend(plan, n, count, &kv).ok()) {
        std::fprintf(stderr, "folio-bench: depth %ld does not fit the KV cache\n", long(depth));
        std::exit(1);
      }
      store.Trim(plan, n + count, &kv);
    }
    FillFrames(store.kv_memory(), kv.pages, store.geometry().dtype, &kv_sample_);
    FillFrames(store.kv_memory(), kv.sinks, store.geometry().dtype, &kv_sample_);
    FillFrames(store.summary_memory(), kv.summaries, DType::kF32, &summary_sample_);
    return kv;
  }

  static void FillFrames(const FrameMemory& memory, const std::vector<FrameId>& frames, DType dtype,
                         std::vector<std::byte>* sample) {
    if (sample->empty()) {
      sample->resize(memory.frame_bytes);
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      const int64_t size = DTypeBytes(dtype);
      for (int64_t at = 0; at + size <= memory.frame_bytes; at += size) {
        const float value = normal(random);
        const uint16_t half = FloatToBf16(value);
        std::memcpy(sample->data() + at,
                    dtype == DType::kBf16 ? static_cast<const void*>(&half) : &value, size);
      }
    }
    for (FrameId frame : frames) std::memcpy(memory.Frame(frame), sample->data(), sample->size());
  }

  void Run(const AttentionPlan& plan, int count, int64_t* position, SequenceKv* kv) {
    if (!model_->store->Extend(plan, *position, count, kv).ok()) std::exit(1);
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back({0, count, *position, &plan, kv->first_page, kv->pages, kv->sinks,
                            kv->summaries, &kv->pending_queries});
    tokens_.assign(count, 3);
    const std::vector<int> last = {count - 1};
    model_->transformer->Forward(batch, tokens_, last);
    *position += count;
    most_kv_bytes_ = std::max(
        most_kv_bytes_, model_->store->used_page_bytes() + model_->store->used_summary_bytes());
    model_->store->Trim(plan, *position, kv);
  }

  // Weights once (of the embedding one row), and the keys and values that are looked at.
  double BytesPerToken(const AttentionPlan& plan, int64_t position) const {
    const KvGeometry& g = model_->store->geometry();
    double weights = static_cast<double>(model_->weights.bytes());
    if (model_->weights.lm_head.matrix) weights -= model_->weights.embedding->bytes();
    const double kv_token = static_cast<double>(g.frame_bytes()) / g.page_tokens;
    double bytes = weights + kv_token * static_cast<double>(NumVisibleKeys(plan, position));
    if (plan.selection.enabled()) {
      const int64_t chunks = position / plan.selection.chunk_tokens;
      // Every head of a group picks for itself; on random keys they rarely agree.
      const int64_t picks = std::clamp<int64_t>(chunks - 2, 0, plan.selection.num_free_picks);
      const int64_t other_heads = g.num_heads / g.num_kv_heads - 1;
      bytes += kv_token * static_cast<double>(other_heads * picks * plan.selection.chunk_tokens);
      bytes += static_cast<double>(g.summary_frame_bytes() / kTile * chunks);
    }
    return bytes;
  }

  // The output layer runs for the last token only and is left out.
  double FlopsPerToken(const AttentionPlan& plan, int64_t depth) const {
    const ModelShape& s = model_->config.shape;
    const double q = double(s.num_heads) * s.head_dim;
    const double kv = double(s.num_kv_heads) * s.head_dim;
    const double per_layer =
        s.hidden_size * (2 * q + 2 * kv) + 3.0 * s.hidden_size * s.intermediate_size;
    const int64_t middle = depth + absl::GetFlag(FLAGS_prefill_tokens) / 2;
    return 2.0 * s.num_layers * per_layer +
           4.0 * s.num_layers * q * static_cast<double>(NumVisibleKeys(plan, middle));
  }

  LoadedModel* const model_;
  MachineMeter meter_;
  int64_t most_kv_bytes_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<std::byte> kv_sample_;
  std::vector<std::byte> summary_sample_;
};

void Print(const Row& r) {
  const double share = r.decode_bytes_per_s / r.read_bytes_per_s;
  const double peak_share = r.peak_flops_per_s > 0 ? r.prefill_flops_per_s / r.peak_flops_per_s : 0;
  if (absl::GetFlag(FLAGS_json)) {
    std::printf(
        "{\"strategy\": \"%s\", \"depth\": %ld, \"decode_tokens_per_s\": %.3f, "
        "\"decode_gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, \"bandwidth_share\": %.3f, "
        "\"prefill_tokens_per_s\": %.2f, \"prefill_gflop_per_s\": %.1f, "
        "\"fp32_peak_gflop_per_s\": %.1f, \"peak_share\": %.3f, \"peak_rss_bytes\": %ld}\n",
        r.strategy.c_str(), long(r.depth), r.decode_tokens_per_s, r.decode_bytes_per_s / 1e9,
        r.read_bytes_per_s / 1e9, share, r.prefill_tokens_per_s, r.prefill_flops_per_s / 1e9,
        r.peak_flops_per_s / 1e9, peak_share, long(PeakResidentBytes()));
  } else {
    std::printf("%-12s %8ld %10.2f %8.1f %8.1f %7.0f %% %10.1f %9.1f %7.0f %%\n",
                r.strategy.c_str(), long(r.depth), r.decode_tokens_per_s,
                r.decode_bytes_per_s / 1e9, r.read_bytes_per_s / 1e9, 100 * share,
                r.prefill_tokens_per_s, r.prefill_flops_per_s / 1e9, 100 * peak_share);
  }
  std::fflush(stdout);
}

int Main() {
  EngineOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.device = absl::GetFlag(FLAGS_device);
  options.make_cuda = CudaMaker();
  options.num_threads = absl::GetFlag(FLAGS_threads);
  options.kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  options.step_tokens = std::max(64, absl::GetFlag(FLAGS_prefill_tokens));
  options.prefill_share_tokens = options.step_tokens;
  options.max_running_requests = 1;
  auto model = LoadModel(options, /*tokenizer_required=*/false);
  if (!model.ok()) {
    std::fprintf(stderr, "folio-bench: %s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  const EngineInfo& info = (*model)->info;
  if (!absl::GetFlag(FLAGS_json)) {
    std::printf("%s%s: %s, %d threads, weights %s (%.2f GB), KV %s, pages of %d tokens\n",
                info.model_name.c_str(), info.synthetic ? " (synthetic weights)" : "",
                info.backend.c_str(), info.num_threads, info.weight_dtype.c_str(),
                info.weight_bytes / 1e9, info.kv_dtype.c_str(), info.page_tokens);
    std::printf("%-12s %8s %10s %8s %8s %9s %10s %9s %9s\n", "strategy", "depth", "decode t/s",
                "GB/s", "read", "of read", "prefill", "GFLOP/s", "of fp32");
  }
  Bench bench(model->get(), info.num_threads);
  for (const std::string& strategy : SplitFlag(absl::GetFlag(FLAGS_strategies))) {
    for (const std::string& text : SplitFlag(absl::GetFlag(FLAGS_depths))) {
      int64_t depth = 0;
      if (!absl::SimpleAtoi(text, &depth) || depth < 0) {
        std::fprintf(stderr, "folio-bench: '%s' is no depth\n", text.c_str());
        return 1;
      }
      Print(bench.Measure(strategy, depth));
    }
  }
  if (!absl::GetFlag(FLAGS_json)) {
    std::printf(
        "peak resident memory %.2f GB without the buffer of the read meter; weights and KV %.2f "
        "GB\n",
        (PeakResidentBytes() - MachineMeter::kBufferBytes) / 1e9, bench.most_stored_bytes() / 1e9);
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
