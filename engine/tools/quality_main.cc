// What narrower numbers cost: perplexity of a text, and how far the distributions are from those of
// fp32 weights and cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/attention/attention_registry.h"
#include "engine/base/status_macros.h"
#include "engine/kv/sequence_slice.h"
#include "engine/runtime/loaded_model.h"

ABSL_FLAG(std::string, model, "", "Hugging Face directory");
ABSL_FLAG(std::string, text, "", "file with text that the model was not trained on");
ABSL_FLAG(int, windows, 32, "pieces of the trained length that are read, from the text's begin");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::vector<std::string>, formats,
          std::vector<std::string>({"fp32:fp32", "bf16:fp32", "fp32:bf16", "int8/32:fp32",
                                    "int8/64:fp32", "int8/128:fp32", "int4/32:fp32", "int4/64:fp32",
                                    "int4/128:fp32", "fp32:int8", "fp32:int4", "int8/32:int8",
                                    "int4/32:int8"}),
          "what is compared: WEIGHTS:CACHE, weights as DTYPE or DTYPE/GROUP");

namespace folio {
namespace {

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadAs(const std::string& format) {
  const std::vector<std::string> numbers = absl::StrSplit(format, ':');
  const std::vector<std::string> weights = absl::StrSplit(numbers[0], '/');
  EngineOptions options;
  if (numbers.size() != 2 || weights.size() > 2 ||
      (weights.size() == 2 && !absl::SimpleAtoi(weights[1], &options.weight_group))) {
    return absl::InvalidArgumentError(absl::StrCat("'", format, "' is not WEIGHTS:CACHE"));
  }
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.num_threads = absl::GetFlag(FLAGS_threads);
  options.weight_dtype = weights[0];
  options.kv_dtype = numbers[1];
  options.max_running_requests = 1;
  return LoadModel(options);
}

using Tokens = std::vector<int32_t>;

// A text that a model reads under full attention.
class Reader {
 public:
  static absl::StatusOr<Reader> Begin(LoadedModel* model, int64_t num_tokens) {
    FOLIO_ASSIGN_OR_RETURN(const AttentionSpec spec,
                           ResolveAttention({{"full", {}}, {}}, {}, model->attention, {}));
    return Reader(model, PlanFor(spec, model->attention, num_tokens));
  }
  Reader(Reader&& other) noexcept
      : model_(other.model_),
        plan_(std::move(other.plan_)),
        kv_(std::exchange(other.kv_, {})),
        position_(other.position_) {}
  ~Reader() { model_->store->Release(&kv_); }

  // Logits [tokens.size()][vocab] after each of the next tokens, until the model's next step.
  absl::StatusOr<std::span<const float>> Next(std::span<const int32_t> tokens) {
    const auto count = static_cast<int>(tokens.size());
    FOLIO_RETURN_IF_ERROR(model_->store->Extend(plan_, position_, count, &kv_));
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back(MakeSlice(plan_, kv_, position_, count));
    std::vector<int> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const std::span<const float> logits = model_->transformer->Forward(batch, tokens, rows);
    model_->store->EndStep();
    position_ += count;
    FOLIO_RETURN_IF_ERROR(model_->transformer->status());
    return logits;
  }

 private:
  Reader(LoadedModel* model, AttentionPlan plan) : model_(model), plan_(std::move(plan)) {}

  LoadedModel* model_;
  AttentionPlan plan_;
  SequenceKv kv_;
  int64_t position_ = 0;
};

// A distribution over the vocabulary.
class Prediction {
 public:
  explicit Prediction(std::span<const float> logits) : logits_(logits) {
    first_ = std::max_element(logits.begin(), logits.end()) - logits.begin();
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit} - logits[first_]);
    normal_ = logits[first_] + std::log(sum);
  }
  double LogOf(size_t token) const { return logits_[token] - normal_; }
  int64_t first() const { return first_; }
  // KL(this || other).
  double Divergence(const Prediction& other) const {
    double sum = 0;
    for (size_t t = 0; t < logits_.size(); ++t) {
      sum += std::exp(LogOf(t)) * (LogOf(t) - other.LogOf(t));
    }
    return sum;
  }

 private:
  const std::span<const float> logits_;
  int64_t first_ = 0;
  double normal_ = 0;
};

// Sums over tokens of the text.
struct Quality {
  double reference_loss = 0;  // -log of their probabilities
  double loss = 0;
  double divergence = 0;  // of the reference's distribution to the other
  int64_t same_first = 0;
  int64_t count = 0;

  void Add(const Prediction& reference, const Prediction& other, int32_t next) {
    reference_loss -= reference.LogOf(next);
    loss -= other.LogOf(next);
    divergence += reference.Divergence(other);
    same_first += reference.first() == other.first() ? 1 : 0;
    ++count;
  }
  double Mean(double sum) const { return sum / static_cast<double>(count); }
};

// Both read the window, a step of as many tokens as have logits after the other.
absl::Status CompareWindow(LoadedModel* reference, LoadedModel* other, const Tokens& window,
                           Quality* quality) {
  const auto num_tokens = static_cast<int64_t>(window.size());
  FOLIO_ASSIGN_OR_RETURN(Reader left, Reader::Begin(reference, num_tokens));
  FOLIO_ASSIGN_OR_RETURN(Reader right, Reader::Begin(other, num_tokens));
  const size_t step = std::min(reference->scheduler.score_rows, other->scheduler.score_rows);
  const size_t vocab = reference->config.shape.vocab_size;
  for (size_t begin = 0; begin + 1 < window.size(); begin += step) {
    const size_t count = std::min(step, window.size() - 1 - begin);
    const std::span<const int32_t> tokens = std::span(window).subspan(begin, count);
    FOLIO_ASSIGN_OR_RETURN(const std::span<const float> expected, left.Next(tokens));
    FOLIO_ASSIGN_OR_RETURN(const std::span<const float> logits, right.Next(tokens));
    for (size_t n = 0; n < count; ++n) {
      quality->Add(Prediction(expected.subspan(n * vocab, vocab)),
                   Prediction(logits.subspan(n * vocab, vocab)), window[begin + n + 1]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tokens>> ReadWindows(const LoadedModel& model) {
  const std::string path = absl::GetFlag(FLAGS_text);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) {
    return absl::NotFoundError(absl::StrCat("--text: '", path, "' is not there, or empty"));
  }
  FOLIO_ASSIGN_OR_RETURN(const Tokens tokens, model.tokenizer->Encode(text));
  const auto length = static_cast<int64_t>(model.config.shape.trained_length);
  std::vector<Tokens> windows;
  for (int64_t begin = 0; begin + length <= std::ssize(tokens); begin += length) {
    if (std::ssize(windows) == absl::GetFlag(FLAGS_windows)) break;
    windows.emplace_back(tokens.begin() + begin, tokens.begin() + begin + length);
  }
  if (windows.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--text has fewer than ", length, " tokens, the trained length"));
  }
  return windows;
}

void PrintRow(const EngineInfo& info, const Quality& q) {
  std::printf("%-10s %-6s %10.4f %8.3f%% %10.6f %11.2f%% %9.2f\n", info.weight_dtype.c_str(),
              info.kv_dtype.c_str(), std::exp(q.Mean(q.loss)),
              100 * (std::exp(q.Mean(q.loss - q.reference_loss)) - 1), q.Mean(q.divergence),
              100 * q.Mean(static_cast<double>(q.same_first)),
              static_cast<double>(info.weight_bytes) / 1e6);
}

absl::Status Run() {
  FOLIO_ASSIGN_OR_RETURN(const auto reference, LoadAs("fp32:fp32"));
  FOLIO_ASSIGN_OR_RETURN(const auto windows, ReadWindows(*reference));
  std::printf("%zu windows of %zu tokens, %s; beside fp32 weights of %.2f MB and an fp32 cache\n",
              windows.size(), windows[0].size(), reference->info.backend.c_str(),
              static_cast<double>(reference->info.weight_bytes) / 1e6);
  std::printf("%-10s %-6s %10s %9s %10s %12s %9s\n", "weights", "cache", "perplexity", "change",
              "mean KL", "same token", "MB");
  for (const std::string& format : absl::GetFlag(FLAGS_formats)) {
    FOLIO_ASSIGN_OR_RETURN(const auto model, LoadAs(format));
    Quality quality;
    for (const Tokens& window : windows) {
      FOLIO_RETURN_IF_ERROR(CompareWindow(reference.get(), model.get(), window, &quality));
    }
    PrintRow(model->info, quality);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("perplexity and divergence of narrower weights and caches");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = folio::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "folio-quality: %s\n", std::string(status.message()).c_str());
  return 1;
}
