#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace folio::server {

// Text or, with `json`, one JSON object per line, on stdout; gRPC's and protobuf's messages
// likewise. Writing a line never waits. Call once, before the first line.
void SetUpLogging(const std::string& level, bool json);

// Lines that could not be written at once, and were not.
int64_t DroppedLogLines();

// What every line shows of a message, which may hold text of clients: control characters and bytes
// that are no UTF-8 as \xNN, so that a client can neither write lines of its own nor steer a
// terminal.
std::string EscapeLogText(std::string_view text);

// What the log keeps of a finished RPC.
struct RpcRecord {
  const char* method = "";
  const char* code = "";
  // Request or document id as the client sent it; may hold any bytes.
  std::string id;
  std::string strategy;
  double seconds = 0;
};

// One line per RPC. The id is quoted: a client cannot write fields of its own.
void LogRpc(const RpcRecord& record);

}  // namespace folio::server
