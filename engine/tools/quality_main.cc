// What narrower numbers cost: perplexity of a text, and how far the distributions are from those of
// fp32 weights and cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/attention/attention_registry.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/loaded_model.h"

ABSL_FLAG(std::string, model, "", "Hugging Face directory");
ABSL_FLAG(std::string, text, "", "file with text that the model was not trained on");
ABSL_FLAG(int, windows, 32, "pieces of the trained length that are read, from the text's begin");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::vector<std::string>, formats,
          std::vector<std::string>({"bf16:fp32", "fp32:bf16", "int8/32:fp32", "int8/64:fp32",
                                    "int8/128:fp32", "int4/32:fp32", "int4/64:fp32",
                                    "int4/128:fp32"}),
          "what is compared: WEIGHTS:CACHE, weights as DTYPE or DTYPE/GROUP");

namespace folio {
namespace {

using LogProbs = std::vector<float>;  // [vocab]

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

void ToLogProbs(std::span<const float> logits, LogProbs* out) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  const double normal = most + std::log(sum);
  out->resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) (*out)[i] = static_cast<float>(logits[i] - normal);
}

// Distributions after each token of a window, under full attention.
absl::Status Predict(LoadedModel* model, std::span<const int32_t> tokens,
                     std::vector<LogProbs>* out) {
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec spec,
                         ResolveAttention({{"full", {}}, {}}, {}, model->attention, {}));
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const AttentionPlan plan = PlanFor(spec, model->attention, num_tokens);
  const int most_rows = model->scheduler.score_rows;
  const size_t vocab = model->config.shape.vocab_size;
  SequenceKv kv;
  absl::Status status;
  for (int64_t first = 0; first < num_tokens && status.ok(); first += most_rows) {
    StepBatch batch;
    batch.num_rows = static_cast<int>(std::min<int64_t>(most_rows, num_tokens - first));
    status = model->store->Extend(plan, first, batch.num_rows, &kv);
    if (!status.ok()) break;
    SequenceSlice& slice = batch.slices.emplace_back();
    slice.num_rows = batch.num_rows;
    slice.first_position = first;
    slice.plan = &plan;
    slice.first_page = kv.first_page;
    slice.pages = kv.pages;
    slice.sinks = kv.sinks;
    slice.summaries = kv.summaries;
    slice.pending_queries = kv.pending_queries;
    std::vector<int> rows(batch.num_rows);
    for (int row = 0; row < batch.num_rows; ++row) rows[row] = row;
    const std::span<const float> logits =
        model->transformer->Forward(batch, tokens.subspan(first, batch.num_rows), rows);
    model->store->EndStep();
    for (int row = 0; row < batch.num_rows; ++row) {
      ToLogProbs(logits.subspan(row * vocab, vocab), &out->emplace_back());
    }
    status = model->transformer->status();
  }
  model->store->Release(&kv);
  return status;
}

struct Quality {
  double log_loss = 0;    // mean, of the tokens of the text
  double divergence = 0;  // mean KL(reference || this)
  double same_first = 0;  // share of tokens where both would choose the same
};

Quality Compare(const std::vector<std::vector<int32_t>>& windows,
                const std::vector<std::vector<LogProbs>>& reference,
                const std::vector<std::vector<LogProbs>>& tested) {
  Quality quality;
  int64_t count = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    for (size_t i = 0; i + 1 < windows[w].size(); ++i, ++count) {
      const LogProbs &p = reference[w][i], &q = tested[w][i];
      quality.log_loss -= q[windows[w][i + 1]];
      for (size_t t = 0; t < p.size(); ++t) {
        quality.divergence += std::exp(double{p[t]}) * (double{p[t]} - q[t]);
      }
      const auto first = [](const LogProbs& v) {
        return std::max_element(v.begin(), v.end()) - v.begin();
      };
      quality.same_first += first(p) == first(q) ? 1 : 0;
    }
  }
  for (double* mean : {&quality.log_loss, &quality.divergence, &quality.same_first}) {
    *mean /= static_cast<double>(count);
  }
  return quality;
}

absl::StatusOr<std::vector<std::vector<LogProbs>>> PredictAll(
    LoadedModel* model, const std::vector<std::vector<int32_t>>& windows) {
  std::vector<std::vector<LogProbs>> predicted(windows.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    FOLIO_RETURN_IF_ERROR(Predict(model, windows[w], &predicted[w]));
  }
  return predicted;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadWindows(const LoadedModel& model) {
  std::ifstream file(absl::GetFlag(FLAGS_text));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, model.tokenizer->Encode(text));
  const auto length = static_cast<size_t>(model.config.shape.trained_length);
  std::vector<std::vector<int32_t>> windows;
  for (size_t begin = 0; begin + length <= tokens.size(); begin += length) {
    if (std::ssize(windows) == absl::GetFlag(FLAGS_windows)) break;
    windows.emplace_back(tokens.begin() + static_cast<int64_t>(begin),
                         tokens.begin() + static_cast<int64_t>(begin + length));
  }
  if (windows.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--text has fewer than ", length, " tokens, the trained length"));
  }
  return windows;
}

absl::Status Run() {
  FOLIO_ASSIGN_OR_RETURN(auto reference, LoadAs("fp32:fp32"));
  FOLIO_ASSIGN_OR_RETURN(const auto windows, ReadWindows(*reference));
  FOLIO_ASSIGN_OR_RETURN(const auto expected, PredictAll(reference.get(), windows));
  const double least = Compare(windows, expected, expected).log_loss;
  std::printf("%zu windows of %zu tokens, %s\n", windows.size(), windows[0].size(),
              reference->info.backend.c_str());
  std::printf("%-10s %-6s %10s %9s %10s %12s %9s\n", "weights", "cache", "perplexity", "change",
              "mean KL", "same token", "MB");
  std::printf("%-10s %-6s %10.4f %9s %10s %12s %9.2f\n", "fp32", "fp32", std::exp(least), "", "",
              "", static_cast<double>(reference->info.weight_bytes) / 1e6);
  reference.reset();
  for (const std::string& format : absl::GetFlag(FLAGS_formats)) {
    FOLIO_ASSIGN_OR_RETURN(const auto model, LoadAs(format));
    FOLIO_ASSIGN_OR_RETURN(const auto predicted, PredictAll(model.get(), windows));
    const Quality quality = Compare(windows, expected, predicted);
    std::printf("%-10s %-6s %10.4f %8.3f%% %10.6f %11.2f%% %9.2f\n",
                model->info.weight_dtype.c_str(), model->info.kv_dtype.c_str(),
                std::exp(quality.log_loss), 100 * (std::exp(quality.log_loss - least) - 1),
                quality.divergence, 100 * quality.same_first,
                static_cast<double>(model->info.weight_bytes) / 1e6);
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
