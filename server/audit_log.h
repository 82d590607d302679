#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "server/auth/minute_rate.h"
#include "server/clock.h"
#include "server/edge/fd.h"
#include "server/logging.h"

namespace folio::server {

// Who did what to which document, and what became of it: lines of JSON in a file of their own,
// without any text of clients but ids. A line is there when Add returns; one that cannot be written
// is counted. A file that was moved away or deleted is begun anew, as log rotation wants it.
// Thread-safe.
class AuditLog {
 public:
  AuditLog() { refusals_.SetLimit(kRefusalsPerMinute); }

  // From now on lines are appended to the file, or to a new one that its user alone may read;
  // before, nothing is written. Never waits for who reads a pipe. Call once. Errors: UNAVAILABLE.
  absl::Status Open(const std::string& path);
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  // Writes a line if the call named a document or a request, listed them, or was not let in. Of the
  // last, which strangers can cause as they like, kRefusalsPerMinute; the next line says how many
  // were left out.
  void Add(const RpcRecord& record, SteadyTime now);
  static constexpr int64_t kRefusalsPerMinute = 600;

  // To be called now and then: whether the path still names the file.
  void Look();
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  Fd OpenFile() const FOLIO_REQUIRES(mu_);

  std::atomic<bool> is_open_{false};
  std::atomic<int64_t> dropped_{0};
  Mutex mu_;
  std::string path_ FOLIO_GUARDED_BY(mu_);
  Fd file_ FOLIO_GUARDED_BY(mu_);
  MinuteRate refusals_ FOLIO_GUARDED_BY(mu_);
  int64_t left_out_ FOLIO_GUARDED_BY(mu_) = 0;
};

}  // namespace folio::server
