#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace folio::server {

// Text or, with `json`, one JSON object per line, on stdout; gRPC's and protobuf's messages
// likewise. Writing a line never waits. Call once, before the first line.
void SetUpLogging(const std::string& level, bool json);

// A line that somebody has asked for, whatever the level.
void LogAlways(const std::string& line);

// Lines that could not be written at once, and were not.
int64_t DroppedLogLines();

// What every line shows of a message, which may hold text of clients: control characters and bytes
// that are no UTF-8 as \xNN, so that a client can neither write lines of its own nor steer a
// terminal.
std::string EscapeLogText(std::string_view text);

// What the log keeps of a finished RPC. What is empty is left out. Ids may hold any bytes.
struct RpcRecord {
  // Of calls that the engine works for.
  struct Work {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t completion_tokens = 0;
    double queue_seconds = 0;
    double prefill_seconds = 0;
    double decode_seconds = 0;
    int64_t steps = 0;
    int64_t computed_tokens = 0;  // of the prompt; no part of the line
  };
  const char* method = "";
  const char* code = "";
  std::string reason = {};  // google.rpc.ErrorInfo.reason
  std::string request_id = {};
  std::string tenant = {};
  // Who it was, the tenant or an administrator in its name, and where from: for the audit log.
  std::string identity = {};
  std::string address = {};
  std::string document_id = {};
  std::string strategy = {};
  std::string trace_id = {};
  double seconds = 0;
  std::optional<Work> work = {};
};

// One line per RPC: text with name=value, what clients write in quotes, so that they cannot write
// fields of their own; or with `json` each a member of the line's object.
void LogRpc(const RpcRecord& record);

}  // namespace folio::server
