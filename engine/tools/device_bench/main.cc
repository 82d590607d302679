// folio-device-bench: the speed of one device, each figure beside the ceilings that the same run
// measures. Figures are JSON lines; tools/gpu_report.py makes tables of them and says which goals
// are met.
//   exit code 0: all measured; 1: some failed; 3: the device failed, and later ones did not run
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/runtime/cuda_maker.h"
#include "engine/runtime/loaded_model.h"
#include "engine/tools/device_bench/clock.h"
#include "engine/tools/device_bench/figures.h"
#include "engine/tools/device_bench/measurement.h"

ABSL_FLAG(std::string, device, "cuda", "auto, cpu or cuda");
ABSL_FLAG(std::string, model, "synthetic:llama-2-7b", "Hugging Face directory, or synthetic:NAME");
ABSL_FLAG(std::vector<std::string>, only, {},
          "what is measured, of --list: names, or what names begin with; default: everything");
ABSL_FLAG(bool, list, false, "print the names of all measurements and end");
ABSL_FLAG(std::string, json, "", "file that the figures are appended to, one JSON object per line");
ABSL_FLAG(int64_t, scale, 1, "what lengths are divided by, for a try on a small machine");
ABSL_FLAG(int, step_tokens, 2048, "tokens of a prefill step");
ABSL_FLAG(int, repetitions, 20, "steps of which the median counts");
ABSL_FLAG(int64_t, kv_bytes, 0, "bytes of KV cache; 0: what the device has room for");
ABSL_FLAG(int64_t, kv_host_bytes, 0, "bytes of the host's memory for complete pages; 0: they stay");

namespace folio {
namespace {

constexpr int kSomeFailed = 1;
constexpr int kDeviceFailed = 3;

std::vector<Measurement> All() {
  const int64_t scale = absl::GetFlag(FLAGS_scale);
  const int step_tokens = absl::GetFlag(FLAGS_step_tokens);
  std::vector<Measurement> all = CeilingMeasurements();
  for (auto& more : {DecodeMeasurements(scale), PrefillMeasurements(scale, step_tokens),
                     TierMeasurements(scale, step_tokens), VerbMeasurements(scale, step_tokens)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Those whose name is `prefix`, or lies under it.
bool IsUnder(const std::string& name, const std::string& prefix) {
  return name == prefix || absl::StartsWith(name, absl::StrCat(prefix, "/"));
}

absl::StatusOr<std::vector<Measurement>> Chosen() {
  const std::vector<Measurement> all = All();
  const std::vector<std::string> only = absl::GetFlag(FLAGS_only);
  if (only.empty()) return all;
  std::vector<Measurement> chosen;
  for (const std::string& prefix : only) {
    const size_t before = chosen.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
                 [&](const Measurement& one) { return IsUnder(one.name, prefix); });
    if (chosen.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("--only: there is no measurement '", prefix, "'; --list names all"));
    }
  }
  return chosen;
}

EngineOptions Options() {
  EngineOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.device = absl::GetFlag(FLAGS_device);
  options.make_cuda = CudaMaker();
  options.kv_dtype = "bf16";
  options.kv_bytes = absl::GetFlag(FLAGS_kv_bytes);
  options.kv_host_bytes = absl::GetFlag(FLAGS_kv_host_bytes);
  options.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  options.prefill_share_tokens = options.step_tokens;
  options.max_running_requests = 64;
  return options;
}

int Run(LoadedModel* model, const std::vector<Measurement>& measurements, Figures* figures) {
  BenchContext bench{model, BenchStreams(model),
                     Ceilings(model->backend.get(), absl::GetFlag(FLAGS_scale)),
                     absl::GetFlag(FLAGS_repetitions)};
  int code = 0;
  for (const Measurement& measurement : measurements) {
    const auto values = measurement.run(bench);
    bench.streams.Clear();
    const absl::Status device = model->backend->status();
    if (values.ok() && device.ok()) {
      figures->Add(measurement.name, *values);
      continue;
    }
    figures->AddFailure(measurement.name, device.ok() ? values.status() : device);
    if (!device.ok()) return kDeviceFailed;
    if (!absl::IsUnimplemented(values.status())) code = kSomeFailed;
  }
  return code;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "folio-device-bench: %s\n", std::string(status.message()).c_str());
  return kSomeFailed;
}

int Main() {
  if (absl::GetFlag(FLAGS_scale) < 1 || absl::GetFlag(FLAGS_step_tokens) < 1 ||
      absl::GetFlag(FLAGS_repetitions) < 1) {
    return Fail(absl::InvalidArgumentError("--scale, --step_tokens, --repetitions: at least 1"));
  }
  const auto measurements = Chosen();
  if (!measurements.ok()) return Fail(measurements.status());
  if (absl::GetFlag(FLAGS_list)) {
    for (const Measurement& one : *measurements) std::printf("%s\n", one.name.c_str());
    return 0;
  }
  Figures figures(absl::GetFlag(FLAGS_json));
  const double start = NowSeconds();
  const auto model = LoadModel(Options(), /*tokenizer_required=*/false);
  if (!model.ok()) return Fail(model.status());
  const EngineInfo& info = (*model)->info;
  figures.Add("start", {{"model", info.model_name},
                        {"synthetic", info.synthetic},
                        {"backend", info.backend},
                        {"weights", info.weight_dtype},
                        {"kv", info.kv_dtype},
                        {"page_tokens", info.page_tokens},
                        {"scale", absl::GetFlag(FLAGS_scale)},
                        {"seconds", NowSeconds() - start},
                        {"memory", info.memory_plan}});
  return Run(model->get(), *measurements, &figures);
}

}  // namespace

}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures a device beside its own ceilings.");
  absl::ParseCommandLine(argc, argv);
  return folio::Main();
}
