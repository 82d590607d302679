#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_format.h"
#include "server/config_sources.h"
#include "server/edge/listen_address.h"
#include "server/exit_code.h"
#include "server/flag_checks.h"
#include "server/limit_flags.h"
#include "server/port_flags.h"
#include "server/version.h"

namespace folio::server {
namespace {

// HOST:PORT or [IPv6]:PORT.
const CLI::Validator kAddress(
    [](std::string& address) {
      const absl::Status status = ParseListenAddress(address).status();
      return std::string(status.message());
    },
    "HOST:PORT");

const CLI::Validator kSlowdown(
    [](std::string& number) -> std::string {
      double value = 0;
      if (absl::SimpleAtod(number, &value) && (value == 0 || (value > 1 && value <= 1000)))
        return {};
      return "must be 0, or above 1 and at most 1000";
    },
    "FLOAT");

const CLI::Validator kChatFormat(
    [](std::string& name) -> std::string {
      if (name == "auto" || name == "none" || name.ends_with(".json")) return "";
      return std::string(FindChatFormat(name).status().message());
    },
    "FORMAT");

// NAME=DIR, several times.
void AddLoraFlag(CLI::App* app, std::vector<AdapterSource>* adapters) {
  const auto add = [adapters](const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      const size_t equals = value.find('=');
      adapters->push_back({value.substr(0, equals), value.substr(equals + 1)});
    }
    return true;
  };
  const auto check = [](const std::string& value) -> std::string {
    const size_t equals = value.find('=');
    const bool both = equals != std::string::npos && equals > 0 && equals + 1 < value.size();
    return both ? "" : "'" + value + "' must be NAME=DIR";
  };
  app->add_option("--lora", CLI::callback_t(add),
                  "A LoRA adapter that requests may name, and the directory that PEFT has saved it "
                  "to; may be given several times")
      ->type_name("NAME=DIR")
      ->check(CLI::Validator(check, "", "lora"))
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddEngineFlags(CLI::App* app, EngineOptions* engine) {
  app->add_option("--model", engine->model_dir,
                  "Hugging Face directory or GGUF file of the model, or synthetic:llama-2-7b and "
                  "the like; required");
  app->add_option("--device", engine->device,
                  "Where the model runs; auto: on a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app->add_option("--threads", engine->num_threads, "Compute threads; 0: all usable CPUs")
      ->check(kCount);
  AddLoraFlag(app, &engine->adapters);
  app->add_option(
         "--chat-format", engine->chat_format,
         "How conversations become tokens: auto (by the checkpoint's chat template), none, "
         "a format such as llama3 or chatml, or a .json file of prefixes and suffixes")
      ->check(kChatFormat);
  app->add_option("--page-tokens", engine->page_tokens,
                  "Tokens in a KV page; 0: by model and device")
      ->check(kCount);
  app->add_option("--cpu-isa", engine->cpu_isa, "Kernels of the CPU backend")
      ->check(CLI::IsMember(
          {"auto", "portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"}));
  app->add_option("--weight-dtype", engine->weight_dtype,
                  "Numbers in the weights; auto: as the model has them, or the nearest to them. "
                  "int8 and int4 have a "
                  "scale per output and group of inputs, and run on the CPU backend")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "int8", "int4"}));
  app->add_option("--weight-group", engine->weight_group,
                  "Inputs that share a scale, of int8 and int4 weights: 32, 64 or 128; 0: 128 of "
                  "int8, 32 of int4")
      ->check(CLI::IsMember({0, 32, 64, 128}));
  app->add_option(
         "--kv-dtype", engine->kv_dtype,
         "Numbers in the KV cache; auto: fp32 beside fp32 weights, else bf16. int8 and int4 are "
         "those of complete pages, and run on the CPU backend")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "int8", "int4"}));
  app->add_option("--kv-bytes,--kv-device-bytes", engine->kv_bytes,
                  "KV cache budget, like 8GiB; 0: 70 % of free memory, on a GPU 95 %")
      ->check(CLI::NonNegativeNumber)
      ->transform(kSize);
  app->add_option(
         "--kv-host-bytes", engine->kv_host_bytes,
         "With a GPU: pinned memory of the host, like 200GiB, where complete KV pages lie; "
         "the GPU keeps what it reads of them. 0: all pages lie on the GPU")
      ->check(CLI::NonNegativeNumber)
      ->transform(kSize);
  app->add_option("--kv-dir", engine->kv_dir,
                  "Directory of this server alone: KV pages that find no room in memory, and "
                  "documents that outlive the process");
  app->add_option("--kv-disk-bytes", engine->kv_disk_bytes,
                  "Bytes of --kv-dir for pages, like 200GiB; 0: 45 % of what is free there")
      ->check(CLI::NonNegativeNumber)
      ->transform(kSize);
  app->add_option("--store-bytes", engine->store_bytes,
                  "Bytes of --kv-dir for stored documents; 0: 45 % of what is free there")
      ->check(CLI::NonNegativeNumber)
      ->transform(kSize);
  app->add_option(
         "--step-tokens", engine->step_tokens,
         "Tokens in one engine step; 0: 64 for each thread, 128 to 512; with --kv-dir 512; on a "
         "GPU 2048")
      ->check(kCount);
  app->add_option("--prefill-share-tokens", engine->prefill_share_tokens,
                  "Most tokens of a step for one prefill while others wait; 0: half of them")
      ->check(kCount);
  app->add_option("--prefill-slowdown", engine->prefill_slowdown,
                  "A step that reads prompts beside running answers takes at most this many times "
                  "as long as one of the answers alone, like 3; 0: no bound")
      ->check(kSlowdown);
}

void AddServerFlags(CLI::App* app, ServerOptions* options) {
  app->add_flag("--use-generation-config", options->use_generation_config,
                "Temperature, top_k, top_p and repetition_penalty that a request leaves out are "
                "those of the model's generation_config.json, absent keys as in transformers "
                "(do_sample false: temperature 0; top_k 50); otherwise greedy");
  app->add_option("--listen", options->listen,
                  "gRPC address; port 0: any free port. One that other hosts reach needs TLS, "
                  "--tenants or --insecure")
      ->check(kAddress);
  app->add_flag("--insecure", options->insecure,
                "Ports that other hosts reach may be without TLS and without tokens");
  app->add_option("--tls-cert", options->tls.cert,
                  "PEM file of the server's certificate and those between it and its root: the "
                  "gRPC port speaks TLS. The files of --tls-* are read again when they change");
  app->add_option("--tls-key", options->tls.key, "PEM file of its private key");
  app->add_option("--tls-client-ca", options->tls.client_ca,
                  "PEM file of roots: every client shows a certificate that descends from one");
  app->add_option("--tenants", options->tenants,
                  "JSON file of who may call, read again when it changes; see docs/tenants.md. "
                  "Without it everybody may do everything");
  app->add_option("--audit-log", options->audit_log,
                  "File that a line of JSON is appended to for each call that is about a document, "
                  "lists or ends requests of others, or was not let in");
  app->add_option("--metrics-listen", options->metrics_listen,
                  "Address of the metrics port, or off: /metrics for Prometheus, /healthz and "
                  "/readyz. One that other hosts reach needs TLS, tokens or --insecure")
      ->check(CLI::IsMember({"off"}) | kAddress);
  app->add_flag("--metrics-tls", options->metrics_tls,
                "The metrics port speaks TLS, too, with the files of --tls-cert and --tls-key");
  app->add_flag("--metrics-tokens", options->metrics_tokens,
                "/metrics is for bearer tokens of administrators, and of tenants with "
                "\"metrics\": true");
  app->add_option(
      "--document-system", options->document_system,
      "System text in front of a document in a chat format, where its upload says none");
  app->add_option("--port-file", options->port_file, "File that the bound ports are written to");
  app->add_option("--drain-seconds", options->drain_seconds,
                  "How long running streams may go on after SIGTERM")
      ->check(kCount);
  app->add_option("--step-timeout-seconds", options->step_timeout_seconds,
                  "A step that lasts longer ends the server; 0: 120 on a GPU, 600 on a CPU")
      ->check(kCount);
  app->add_option("--otlp-endpoint", options->otlp_endpoint,
                  "OpenTelemetry collector that the spans of calls are sent to, by OTLP over gRPC, "
                  "or off")
      ->check(CLI::IsMember({"off"}) | kAddress);
  app->add_option("--otlp-ca", options->otlp_ca,
                  "PEM file of roots, read again when it changes: the collector is spoken to by "
                  "TLS, and shows a certificate that descends from one");
  app->add_option("--slow-step-seconds", options->engine.slow_step_seconds,
                  "A step of the engine that lasts longer is logged with what was in it; 0: none")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--log-level", options->log_level, "Least important lines to write")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app->add_flag("--log-json", options->log_json, "One JSON object per log line");
}

// --kv_bytes=1 becomes --kv-bytes=1.
std::string WithDashes(std::string argument) {
  if (argument.rfind("--", 0) != 0) return argument;
  std::replace(argument.begin(), argument.begin() + std::min(argument.find('='), argument.size()),
               '_', '-');
  return argument;
}

struct ConfigFlags {
  std::string file;
  bool print = false;
};

void AddConfigFlags(CLI::App* app, ConfigFlags* flags) {
  app->add_option("--config", flags->file,
                  "TOML file of flags, like kv-bytes = \"8GiB\": for what neither the command line "
                  "nor an environment variable like FOLIO_KV_BYTES sets")
      ->configurable(false);
  app->add_flag("--print-config", flags->print, "Prints what is set, as such a file, and exits")
      ->configurable(false);
}

// What the command line leaves to the environment and the file, and what holds between flags.
absl::Status Complete(CLI::App* app, const ConfigFlags& config, ServerOptions* options) {
  FOLIO_RETURN_IF_ERROR(ReadEnvironment(app));
  if (!config.file.empty()) FOLIO_RETURN_IF_ERROR(ReadConfigFile(config.file, app));
  FOLIO_RETURN_IF_ERROR(FitLimits(*app, options));
  FOLIO_RETURN_IF_ERROR(CheckPortFlags(*options));
  if (!options->engine.model_dir.empty() || config.print) return absl::OkStatus();
  return absl::InvalidArgumentError("--model is required");
}

ParseResult Refuse(const std::string& why, int* exit_code) {
  std::fprintf(stderr, "folio-server: %s; see --help\n", why.c_str());
  *exit_code = kExitBadConfig;
  return ParseResult::kExit;
}

}  // namespace

ParseResult ParseOptions(int argc, const char* const* argv, ServerOptions* options,
                         int* exit_code) {
  CLI::App app("Folio: answers questions over long documents, over gRPC", "folio-server");
  app.set_version_flag("--version", std::string("folio-server ") + kVersion);
  app.option_defaults()->always_capture_default();
  ConfigFlags config;
  AddConfigFlags(&app, &config);
  AddEngineFlags(&app, &options->engine);
  AddServerFlags(&app, options);
  AddLimitFlags(&app, options);
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) arguments.push_back(WithDashes(argv[i]));  // CLI11 wants so
  try {
    app.parse(arguments);
  } catch (const CLI::Success& done) {
    *exit_code = app.exit(done);
    return ParseResult::kExit;
  } catch (const CLI::ParseError& error) {
    return Refuse(error.what(), exit_code);
  }
  const absl::Status complete = Complete(&app, config, options);
  if (!complete.ok()) return Refuse(std::string(complete.message()), exit_code);
  if (!config.print) return ParseResult::kRun;
  std::fputs(WriteConfig(&app).c_str(), stdout);
  *exit_code = 0;
  return ParseResult::kExit;
}

}  // namespace folio::server
