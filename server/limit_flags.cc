#include "server/limit_flags.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/flag_checks.h"

namespace folio::server {
namespace {

template <typename Limit>
void AddNumber(CLI::App* app, const char* flag, Limit* limit, const char* help) {
  app->add_option(flag, *limit, help)->check(kAtLeastOne);
}

template <typename Limit>
void AddBytes(CLI::App* app, const char* flag, Limit* limit, const char* help,
              const CLI::Validator& allowed = CLI::PositiveNumber) {
  app->add_option(flag, *limit, help)->check(allowed)->transform(kSize);
}

void AddWorkLimits(CLI::App* app, ServerOptions* options) {
  EngineOptions* engine = &options->engine;
  AddNumber(app, "--max-running-requests", &engine->max_running_requests, "Requests in the batch");
  AddNumber(app, "--max-queued-requests", &engine->max_queued_requests,
            "Requests that may wait; more are refused with a retry delay");
  app->add_option("--max-queued-requests-per-client", engine->max_queued_requests_per_client,
                  "Of them of one address; 0: seven eighths")
      ->check(kCount);
  app->add_option("--max-queued-prefill-tokens", engine->max_queued_prefill_tokens,
                  "Tokens of prompts that wait or are being read, without cached ones; 0: no bound")
      ->check(kCount);
  AddBytes(app, "--max-queued-kv-bytes", &engine->max_queued_kv_bytes,
           "KV cache that requests which wait need together; 0: no bound", CLI::NonNegativeNumber);
  app->add_option("--max-context-tokens", engine->max_context_tokens,
                  "Longest document, question and answer together")
      ->check(CLI::PositiveNumber);
  AddNumber(app, "--max-new-tokens-limit", &options->max_new_tokens, "Longest answer in tokens");
  AddNumber(app, "--max-documents", &engine->max_documents, "Documents held at a time");
  AddBytes(app, "--max-document-bytes", &options->max_document_bytes,
           "Largest document, like 64MiB");
  AddBytes(app, "--max-inline-prompt-bytes", &options->max_inline_prompt_bytes,
           "Longest prompt without a document");
}

void AddRequestLimits(CLI::App* app, RequestLimits* limits) {
  AddBytes(app, "--max-request-memory-bytes", &limits->max_memory_bytes,
           "Messages and tokens of all requests together, outside the KV cache");
  AddBytes(app, "--max-stream-buffer-bytes", &limits->max_stream_buffer_bytes,
           "Events held for a client that does not read, before its request is held back");
  AddNumber(app, "--slow-reader-seconds", &limits->slow_reader_seconds,
            "How long a client may leave a write unread before its stream is ended");
  AddNumber(app, "--upload-expiry-seconds", &limits->upload_expiry_seconds,
            "An upload without a byte for so long is deleted");
}

void AddConnectionLimits(CLI::App* app, ConnectionLimits* limits) {
  // What gRPC takes as a number.
  const CLI::Range message_bytes(1, std::numeric_limits<int>::max());
  AddBytes(app, "--max-message-bytes", &limits->max_message_bytes, "Largest message of a client",
           message_bytes);
  AddBytes(app, "--max-connection-partial-bytes", &limits->max_partial_message_bytes,
           "Messages of one connection that have begun and not ended");
  AddBytes(app, "--max-header-block-bytes", &limits->max_header_block_bytes,
           "Headers of one call, as sent");
  AddNumber(app, "--max-header-fields", &limits->max_header_fields, "Fields in them");
  // Half of it is announced to clients.
  app->add_option("--max-open-streams", limits->max_open_streams,
                  "Open calls of one connection before it is closed; half of them are announced")
      ->check(CLI::Range(2, 1 << 30));
  AddNumber(app, "--control-frame-burst", &limits->control_frame_burst,
            "Control and empty frames at once on one connection");
  AddNumber(app, "--control-frames-per-second", &limits->control_frames_per_second,
            "Control and empty frames each second after that");
}

void AddEdgeLimits(CLI::App* app, EdgeLimits* limits) {
  AddNumber(app, "--max-connections", &limits->max_connections,
            "Connections at a time, fewer if file descriptors are short; a new one takes the place "
            "of an idle one");
  AddNumber(app, "--max-connections-per-peer", &limits->max_connections_per_peer,
            "Connections of one address; raise it behind a proxy");
  AddNumber(app, "--handshake-seconds", &limits->handshake_seconds,
            "A connection without an HTTP/2 frame for so long is closed");
  AddBytes(app, "--max-partial-bytes", &limits->max_partial_message_bytes,
           "Messages of all connections that have begun and not ended");
  AddConnectionLimits(app, &limits->connection);
}

void AddMetricsLimits(CLI::App* app, MetricsLimits* limits) {
  AddNumber(app, "--metrics-max-connections", &limits->max_connections,
            "Connections of the metrics port");
  AddNumber(app, "--metrics-max-connections-per-peer", &limits->max_connections_per_peer,
            "Those of one address");
  AddNumber(app, "--metrics-idle-seconds", &limits->idle_seconds,
            "A connection of the metrics port without a byte for so long is closed");
  // libmicrohttpd answers with an error out of the same memory.
  AddBytes(app, "--metrics-max-request-bytes", &limits->max_request_bytes,
           "Request of a scraper with its headers", CLI::Range(1024, 1 << 30));
}

// `flag` is a part of `whole`, which `what_whole` says.
template <typename Part, typename Whole>
absl::Status Fit(const CLI::App& app, const char* flag, Part* part, const char* what_whole,
                 Whole whole) {
  if (std::cmp_less_equal(*part, whole)) return absl::OkStatus();
  if (app.count(flag) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", *part, ", more than ", what_whole, ", which is ", whole));
  }
  *part = static_cast<Part>(whole);
  return absl::OkStatus();
}

}  // namespace

void AddLimitFlags(CLI::App* app, ServerOptions* options) {
  app->option_defaults()->group("Limits");
  AddWorkLimits(app, options);
  AddRequestLimits(app, &options->requests);
  app->add_option("--log-calls-per-second", options->log_calls_per_second,
                  "Finished calls of one tenant, or address, that are logged each second; more are "
                  "counted only. 0: all are")
      ->check(kCount);
  AddEdgeLimits(app, &options->edge);
  AddMetricsLimits(app, &options->metrics);
}

absl::Status FitLimits(const CLI::App& app, ServerOptions* options) {
  EdgeLimits* edge = &options->edge;
  ConnectionLimits* connection = &edge->connection;
  MetricsLimits* metrics = &options->metrics;
  FOLIO_RETURN_IF_ERROR(Fit(app, "--max-queued-requests-per-client",
                            &options->engine.max_queued_requests_per_client,
                            "--max-queued-requests", options->engine.max_queued_requests));
  FOLIO_RETURN_IF_ERROR(Fit(app, "--max-connections-per-peer", &edge->max_connections_per_peer,
                            "--max-connections", edge->max_connections));
  FOLIO_RETURN_IF_ERROR(Fit(app, "--metrics-max-connections-per-peer",
                            &metrics->max_connections_per_peer, "--metrics-max-connections",
                            metrics->max_connections));
  FOLIO_RETURN_IF_ERROR(Fit(app, "--max-connection-partial-bytes",
                            &connection->max_partial_message_bytes, "--max-partial-bytes",
                            edge->max_partial_message_bytes));
  FOLIO_RETURN_IF_ERROR(Fit(app, "--max-message-bytes", &connection->max_message_bytes,
                            "--max-connection-partial-bytes",
                            connection->max_partial_message_bytes));
  FOLIO_RETURN_IF_ERROR(Fit(app, "--max-message-bytes", &connection->max_message_bytes,
                            "--max-request-memory-bytes", options->requests.max_memory_bytes));
  const uint64_t other_fields = connection->max_message_bytes / 64;
  return Fit(app, "--max-inline-prompt-bytes", &options->max_inline_prompt_bytes,
             "--max-message-bytes less 1/64 for the other fields",
             connection->max_message_bytes - other_fields);
}

}  // namespace folio::server
