#include "server/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace folio::server {
namespace {

bool Concerns(const RpcRecord& record) {
  if (!record.document_id.empty()) return true;
  const std::string_view method = record.method;
  return method == "ListDocuments" || method == "ListRequests" || method == "CancelRequest";
}

bool IsRefusal(const RpcRecord& record) {
  const std::string_view code = record.code;
  return code == "UNAUTHENTICATED" || code == "PERMISSION_DENIED";
}

std::string LineOf(const RpcRecord& record, int64_t left_out) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  const auto add = [&line](const char* key, const std::string& value) {
    if (!value.empty()) line[key] = value;
  };
  add("tenant", record.tenant);
  add("identity", record.identity);
  add("address", record.address);
  add("method", record.method);
  add("document_id", record.document_id);
  add("request_id", record.request_id);
  add("trace_id", record.trace_id);
  add("code", record.code);
  add("reason", record.reason);
  if (left_out > 0) line["refusals_left_out"] = left_out;
  // Names may hold any bytes.
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
}

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

absl::Status AuditLog::Open(const std::string& path) {
  MutexLock lock(&mu_);
  path_ = path;
  file_ = OpenFile();
  if (!file_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("cannot write --audit-log ", path, ": ", std::strerror(errno)));
  }
  is_open_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

Fd AuditLog::OpenFile() const {
  return Fd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
}

void AuditLog::Add(const RpcRecord& record, SteadyTime now) {
  const bool refused = IsRefusal(record);
  if (!is_open() || (!refused && !Concerns(record))) return;
  MutexLock lock(&mu_);
  if (refused) {
    if (refusals_.Wait(now).count() > 0) {
      ++left_out_;
      return;
    }
    refusals_.Take(1, now);
  }
  const std::string line = LineOf(record, std::exchange(left_out_, 0));
  // One call, so that lines of several processes do not mix.
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void AuditLog::Look() {
  if (!is_open()) return;
  struct stat named {};
  struct stat open {};
  MutexLock lock(&mu_);
  const bool same =
      ::stat(path_.c_str(), &named) == 0 && ::fstat(file_.get(), &open) == 0 && IsSame(named, open);
  if (same) return;
  // Where the new one cannot be had the old one is better than none.
  if (Fd file = OpenFile(); file.valid()) file_ = std::move(file);
}

}  // namespace folio::server
