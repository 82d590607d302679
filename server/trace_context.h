#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace folio::server {

// Which trace a call belongs to. Source: W3C Trace Context, https://www.w3.org/TR/trace-context/.
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits; empty: the call is in no trace
  std::string parent_id;  // the caller's span, 16 digits; empty: the trace begins here
  std::string span_id;    // the span of the call itself
  bool sampled = false;   // its spans are wanted

  bool exists() const { return !trace_id.empty(); }
};

// The trace and the caller's span that a `traceparent` names; nullopt: it is not one.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// A random id of a span.
std::string NewSpanId();

// That of the call by its metadata, with a span id of its own. Where that is missing, there twice
// or not right it begins a sampled trace if `begin`, else it is in none.
TraceContext TraceOf(const grpc::CallbackServerContext& rpc, bool begin);

// Tells the client as trailing metadata `traceparent` under which span the call is found, if it is
// in a trace. REQUIRES: before the call is finished.
void SendTraceparent(const TraceContext& trace, grpc::CallbackServerContext* rpc);

}  // namespace folio::server
