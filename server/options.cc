#include "server/options.h"

#include <CLI/CLI.hpp>

#include "server/version.h"

namespace folio::server {
namespace {

void AddEngineFlags(CLI::App* app, EngineOptions* engine) {
  app->add_option("--model", engine->model_dir, "Hugging Face directory of the model")->required();
  app->add_option("--threads", engine->num_threads, "Compute threads; 0: all usable CPUs");
  app->add_option("--page-tokens", engine->page_tokens, "Tokens in a KV page; 0: by the model");
  app->add_option("--cpu-isa", engine->cpu_isa, "auto, portable, avx2, avx512 or avx512_bf16");
  app->add_option("--kv-dtype", engine->kv_dtype, "auto, fp32 or bf16");
  app->add_option("--kv-bytes", engine->kv_bytes, "KV cache budget; 0: 70 % of free memory");
  app->add_option("--step-tokens", engine->step_tokens, "Tokens in one engine step");
  app->add_option("--prefill-share-tokens", engine->prefill_share_tokens,
                  "Most tokens of a step for one prefill while others wait");
  app->add_option("--max-running-requests", engine->max_running_requests);
  app->add_option("--max-queued-requests", engine->max_queued_requests,
                  "Requests that may wait; more are refused with a retry delay");
  app->add_option("--max-context-tokens", engine->max_context_tokens);
}

}  // namespace

ParseResult ParseOptions(int argc, char** argv, ServerOptions* options, int* exit_code) {
  CLI::App app("Folio: answers questions over long documents, over gRPC", "folio-server");
  app.set_version_flag("--version", std::string("folio-server ") + kVersion);
  AddEngineFlags(&app, &options->engine);
  app.add_option("--listen", options->listen, "gRPC address; port 0: any free port");
  app.add_option("--metrics-listen", options->metrics_listen, "Prometheus address, or off");
  app.add_option("--port-file", options->port_file, "File that the bound ports are written to");
  app.add_option("--max-new-tokens-limit", options->max_new_tokens);
  app.add_option("--max-document-bytes", options->max_document_bytes);
  app.add_option("--max-documents", options->max_documents);
  app.add_option("--drain-seconds", options->drain_seconds,
                 "How long running streams may go on after SIGTERM");
  app.add_option("--log-level", options->log_level, "debug, info, warning or error");
  app.add_flag("--log-json", options->log_json, "One JSON object per log line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error);
    return ParseResult::kExit;
  }
  return ParseResult::kRun;
}

}  // namespace folio::server
