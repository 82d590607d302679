#include "server/trace_context.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/random_bits.h"

namespace folio::server {
namespace {

constexpr char kMetadataKey[] = "traceparent";

// "VV-" trace "-" parent "-" flags, of which later versions may have more behind another "-".
constexpr size_t kTraceAt = 3, kTraceDigits = 32;
constexpr size_t kParentAt = kTraceAt + kTraceDigits + 1, kParentDigits = 16;
constexpr size_t kFlagsAt = kParentAt + kParentDigits + 1, kFlagsDigits = 2;
constexpr size_t kLength = kFlagsAt + kFlagsDigits;

// Lower case: upper case is not allowed.
bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::string NewSpanId() {
  uint64_t bits = 0;
  while (bits == 0) bits = RandomBits();  // an id of zeros is none
  return absl::StrCat(absl::Hex(bits, absl::kZeroPad16));
}

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kLength) return std::nullopt;
  const std::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return std::nullopt;
  const bool ends = text.size() == kLength || (version != "00" && text[kLength] == '-');
  for (const size_t dash : {kTraceAt - 1, kParentAt - 1, kFlagsAt - 1}) {
    if (!ends || text[dash] != '-') return std::nullopt;
  }
  const std::string_view trace = text.substr(kTraceAt, kTraceDigits);
  const std::string_view parent = text.substr(kParentAt, kParentDigits);
  const std::string_view flags = text.substr(kFlagsAt, kFlagsDigits);
  if (!IsId(trace) || !IsId(parent) || !IsHex(flags)) return std::nullopt;
  const char low = flags[1];
  const bool sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) != 0;
  return TraceContext{std::string(trace), std::string(parent), "", sampled};
}

TraceContext TraceOf(const grpc::CallbackServerContext& rpc, bool begin) {
  const auto [first, last] = rpc.client_metadata().equal_range(kMetadataKey);
  std::optional<TraceContext> trace;
  if (first != last && std::next(first) == last) {
    trace = ParseTraceparent({first->second.data(), first->second.size()});
  }
  if (!trace.has_value()) {
    if (!begin) return {};
    trace = TraceContext{absl::StrCat(NewSpanId(), NewSpanId()), "", "", true};
  }
  trace->span_id = NewSpanId();
  return *std::move(trace);
}

void SendTraceparent(const TraceContext& trace, grpc::CallbackServerContext* rpc) {
  if (!trace.exists()) return;
  rpc->AddTrailingMetadata(kMetadataKey, absl::StrCat("00-", trace.trace_id, "-", trace.span_id,
                                                      trace.sampled ? "-01" : "-00"));
}

}  // namespace folio::server
