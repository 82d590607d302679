#pragma once

#include <cstdint>
#include <string>

#include "engine/runtime/engine.h"

namespace folio::server {

// Everything that the command line sets. Limits are also reported by Control.GetServerInfo.
struct ServerOptions {
  EngineOptions engine;
  std::string listen = "0.0.0.0:50051";
  std::string metrics_listen = "0.0.0.0:9090";  // "off": no metrics
  std::string port_file;                        // where the bound ports are written, for scripts
  int max_new_tokens = 16384;
  int64_t max_inline_prompt_bytes = (int64_t{4} << 20) - (64 << 10);
  int64_t max_document_bytes = int64_t{1} << 30;
  int max_documents = 1000;
  int max_receive_message_bytes = 4 << 20;
  int drain_seconds = 30;
  std::string log_level = "info";
  bool log_json = false;
};

enum class ParseResult { kRun, kExit };

// Reads the command line. On kExit `exit_code` is set (--help, --version or a bad flag, already reported).
ParseResult ParseOptions(int argc, char** argv, ServerOptions* options, int* exit_code);

}  // namespace folio::server
