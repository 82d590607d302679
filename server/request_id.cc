#include "server/request_id.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/random_bits.h"
#include "server/logging.h"

namespace folio::server {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr char kMetadataKey[] = "x-request-id";

}  // namespace

std::string WhatIsWrongWithRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return absl::StrCat("has ", id.size(), " bytes, the limit is ", kMaxRequestIdBytes);
  }
  if (EscapeLogText(id) != id) return "has a control character";
  return "";
}

std::string RequestIdFor(const std::string& chosen) {
  if (!chosen.empty() && WhatIsWrongWithRequestId(chosen).empty()) return chosen;
  return absl::StrCat("req-", absl::Hex(RandomBits(), absl::kZeroPad16));
}

void SendRequestId(const std::string& id, grpc::CallbackServerContext* rpc) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (printable) rpc->AddTrailingMetadata(kMetadataKey, id);
}

}  // namespace folio::server
