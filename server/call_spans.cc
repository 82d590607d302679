#include "server/call_spans.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

void Set(const char* key, const std::string& value, otlp::Span* span) {
  if (value.empty()) return;
  otlp::KeyValue* const attribute = span->add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_string_value(value);
}

void Set(const char* key, int64_t value, otlp::Span* span) {
  otlp::KeyValue* const attribute = span->add_attributes();
  attribute->set_key(key);
  attribute->mutable_value()->set_int_value(value);
}

const char* ServiceOf(const std::string& method) {
  return method == "UploadDocument" ? "folio.v1.Documents" : "folio.v1.Inference";
}

// By the calendar: spans of other processes stand beside them.
class Calendar {
 public:
  explicit Calendar(SteadyTime now) : now_(now) {}
  uint64_t UnixNanos(SteadyTime time) const {
    const auto then = unix_now_ - std::chrono::nanoseconds(now_ - time);
    return static_cast<uint64_t>(std::chrono::nanoseconds(then.time_since_epoch()).count());
  }

 private:
  const SteadyTime now_;
  const std::chrono::sys_time<std::chrono::nanoseconds> unix_now_ =
      std::chrono::system_clock::now();
};

otlp::Span CallSpan(const RunningCall& call, const CallEnd& end) {
  const RunningCall::Origin& origin = call.origin();
  const RunningCall::Subject subject = call.subject();
  const RunningCall::Tokens tokens = call.tokens();
  otlp::Span span;
  span.set_trace_id(absl::HexStringToBytes(origin.trace.trace_id));
  span.set_span_id(absl::HexStringToBytes(origin.trace.span_id));
  span.set_parent_span_id(absl::HexStringToBytes(origin.trace.parent_id));
  span.set_name(absl::StrCat(ServiceOf(origin.method), "/", origin.method));
  span.set_kind(otlp::Span::KIND_SERVER);
  Set("rpc.system", "grpc", &span);
  Set("rpc.service", ServiceOf(origin.method), &span);
  Set("rpc.method", origin.method, &span);
  Set("folio.code", end.code, &span);
  Set("folio.reason", end.reason, &span);
  Set("folio.request_id", subject.request_id, &span);
  Set("folio.tenant", origin.tenant, &span);
  Set("folio.document_id", subject.document_id, &span);
  Set("folio.strategy", subject.strategy, &span);
  Set("folio.prompt_tokens", tokens.prompt, &span);
  Set("folio.cached_tokens", tokens.cached, &span);
  Set("folio.completion_tokens", tokens.completion, &span);
  if (std::string(end.code) != "OK") span.mutable_status()->set_code(otlp::SpanStatus::CODE_ERROR);
  return span;
}

}  // namespace

std::vector<otlp::Span> SpansOf(const RunningCall& call, const CallEnd& end, SteadyTime now) {
  const Calendar calendar(now);
  std::vector<otlp::Span> spans = {CallSpan(call, end)};
  spans.front().set_start_time_unix_nano(calendar.UnixNanos(call.origin().arrived));
  spans.front().set_end_time_unix_nano(calendar.UnixNanos(now));
  for (const auto& [phase, name] :
       {std::pair(CallPhase::kQueued, "queue"), std::pair(CallPhase::kPrefill, "prefill"),
        std::pair(CallPhase::kDecode, "decode")}) {
    const auto time = call.TimeOf(phase, now);
    if (!time.has_value()) continue;
    otlp::Span span;
    span.set_trace_id(spans.front().trace_id());
    span.set_span_id(absl::HexStringToBytes(NewSpanId()));
    span.set_parent_span_id(spans.front().span_id());
    span.set_name(name);
    span.set_kind(otlp::Span::KIND_INTERNAL);
    span.set_start_time_unix_nano(calendar.UnixNanos(time->begin));
    span.set_end_time_unix_nano(calendar.UnixNanos(time->end));
    spans.push_back(std::move(span));
  }
  return spans;
}

}  // namespace folio::server
