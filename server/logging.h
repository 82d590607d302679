#pragma once

#include <string>

namespace folio::server {

// Text or, with `json`, one JSON object per line, on stdout. Call once, before the first line.
void SetUpLogging(const std::string& level, bool json);

// What the log keeps of a finished RPC.
struct RpcRecord {
  const char* method = "";
  const char* code = "";
  // Request or document id as the client sent it; may hold any bytes.
  std::string id;
  std::string strategy;
  double seconds = 0;
};

// One line per RPC. Control characters in the id are escaped: a client cannot write lines of its
// own.
void LogRpc(const RpcRecord& record);

}  // namespace folio::server
