#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/runtime/engine.h"
#include "server/edge/tls.h"
#include "server/limits.h"

namespace folio::server {

// Everything that flags set. Limits are also reported by Control.GetServerInfo.
struct ServerOptions {
  EngineOptions engine;
  std::string listen = "127.0.0.1:50051";
  TlsFiles tls;
  std::string
      tenants;  // file of who may call (TenantDirectory); empty: everybody may do everything
  std::string audit_log;  // file; empty: none
  // A port that others reach is not opened without TLS or tokens, unless they are not wanted.
  bool insecure = false;
  std::string metrics_listen = "127.0.0.1:9090";  // "off": no metrics
  bool metrics_tls = false;                       // with the files of `tls`
  bool metrics_tokens = false;                    // of those that `tenants` lets read them
  std::string port_file;                          // where the bound ports are written, for scripts
  int max_new_tokens = 16384;
  // In front of a document in a chat format whose header says nothing.
  std::string document_system = kDocumentSystem;
  // Requests that do not say how to sample do as the checkpoint's generation_config.json says.
  bool use_generation_config = false;
  // A little less than a message, which also carries the other fields.
  int64_t max_inline_prompt_bytes = (int64_t{4} << 20) - (64 << 10);
  int64_t max_document_bytes = int64_t{1} << 30;
  RequestLimits requests;
  EdgeLimits edge;
  MetricsLimits metrics;
  int drain_seconds = 30;
  // A step, or a task of the prompt pool, that lasts longer ends the server; 0: 120 s on a GPU, 600
  // on a CPU.
  int step_timeout_seconds = 0;
  // Called once when that happens, after streams were told: the process should end at once, as the
  // engine thread cannot be joined.
  std::function<void()> on_stall;
  std::string otlp_endpoint = "off";  // where spans are sent
  std::string otlp_ca;                // PEM file of roots: by TLS
  std::string log_level = "info";
  bool log_json = false;
  // Lines about calls of one client; 0: no bound.
  int log_calls_per_second = 50;
};

enum class ParseResult { kRun, kExit };

// Reads the command line, and for what it leaves open the environment and the file of --config
// (server/config_sources.h); --kv-bytes and --kv_bytes are the same flag. On kExit `exit_code` is
// set: 0 after --help, --version and --print-config, 1 after a bad value, which one line on stderr
// has explained.
ParseResult ParseOptions(int argc, const char* const* argv, ServerOptions* options, int* exit_code);

}  // namespace folio::server
