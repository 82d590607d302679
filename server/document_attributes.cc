#include "server/document_attributes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"

namespace folio::server {
namespace {

constexpr size_t kMaxKeyBytes = 63;
constexpr size_t kMaxValueBytes = 256;
constexpr int64_t kMicros = 1'000'000;
constexpr int64_t kNanosPerMicro = 1000;
constexpr int64_t kMaxTtlSeconds = int64_t{100} * 366 * 24 * 3600;

bool IsKey(const std::string& key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
         });
}

int64_t Micros(const google::protobuf::Duration& duration) {
  return duration.seconds() * kMicros + duration.nanos() / kNanosPerMicro;
}

google::protobuf::Timestamp Time(int64_t us) {
  google::protobuf::Timestamp time;
  time.set_seconds(us / kMicros);
  time.set_nanos(static_cast<int32_t>(us % kMicros * kNanosPerMicro));
  return time;
}

}  // namespace

void CheckTtl(const google::protobuf::Duration& ttl, const std::string& field,
              FieldViolations* bad) {
  const bool none = ttl.seconds() == 0 && ttl.nanos() == 0;
  const bool in_range = ttl.seconds() >= 1 && ttl.seconds() <= kMaxTtlSeconds && ttl.nanos() >= 0 &&
                        ttl.nanos() < kMicros * kNanosPerMicro;
  if (none || in_range) return;
  bad->push_back({field, absl::StrCat("must be 0, or 1 to ", kMaxTtlSeconds, " seconds")});
}

void CheckLabels(const Labels& labels, const std::string& field, FieldViolations* bad) {
  if (labels.size() > kMaxLabels) {
    bad->push_back(
        {field, absl::StrCat("has ", labels.size(), " entries, the limit is ", kMaxLabels)});
  }
  for (const auto& [key, value] : labels) {
    if (!IsKey(key)) {
      bad->push_back({field, absl::StrCat("has the key ", Quoted(key), ", must be 1 to ",
                                          kMaxKeyBytes, " characters of [A-Za-z0-9_.-]")});
    } else if (value.size() > kMaxValueBytes) {
      bad->push_back({absl::StrCat(field, ".", key),
                      absl::StrCat("has ", value.size(), " bytes, the limit is ", kMaxValueBytes)});
    }
  }
}

DocumentAttributes AttributesOf(const v1::DocumentHeader& header) {
  DocumentAttributes attributes;
  attributes.labels.insert(header.labels().begin(), header.labels().end());
  attributes.ttl_us = Micros(header.ttl());
  attributes.pinned = header.pinned();
  return attributes;
}

bool Update(const v1::UpdateDocumentRequest& request, DocumentAttributes* attributes) {
  std::map<std::string, std::string> labels = attributes->labels;
  for (const std::string& key : request.remove_labels()) labels.erase(key);
  for (const auto& [key, value] : request.set_labels()) labels[key] = value;
  if (labels.size() > kMaxLabels) return false;
  attributes->labels = std::move(labels);
  if (request.has_ttl()) attributes->ttl_us = Micros(request.ttl());
  if (request.has_pinned()) attributes->pinned = request.pinned();
  return true;
}

bool HasLabels(const DocumentAttributes& attributes, const Labels& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const auto& label) {
    const auto it = attributes.labels.find(label.first);
    return it != attributes.labels.end() && it->second == label.second;
  });
}

void ToProto(const DocumentAttributes& attributes, v1::Document* document) {
  document->mutable_labels()->insert(attributes.labels.begin(), attributes.labels.end());
  document->set_pinned(attributes.pinned);
  if (attributes.ttl_us != 0) {
    document->mutable_ttl()->set_seconds(attributes.ttl_us / kMicros);
    document->mutable_ttl()->set_nanos(
        static_cast<int32_t>(attributes.ttl_us % kMicros * kNanosPerMicro));
  }
  if (attributes.last_used_us != 0) {
    *document->mutable_last_use_time() = Time(attributes.last_used_us);
  }
}

void SetExpireTime(const DocumentAttributes& attributes, v1::Document* document) {
  const int64_t us = attributes.expires_at_us();
  if (us != DocumentAttributes::kNever) *document->mutable_expire_time() = Time(us);
}

}  // namespace folio::server
