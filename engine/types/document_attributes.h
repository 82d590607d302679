#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace folio {

// What the owner of a document may change at any time. Times are Unix times in microseconds.
struct DocumentAttributes {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  std::map<std::string, std::string> labels;
  int64_t last_used_us = 0;
  int64_t ttl_us = 0;  // after the last use; 0: none
  // It does not expire, and its cache is not dropped to make room for others.
  bool pinned = false;

  bool operator==(const DocumentAttributes&) const = default;

  // When a finished document is deleted.
  int64_t expires_at_us() const {
    if (pinned || ttl_us == 0 || last_used_us > kNever - ttl_us) return kNever;
    return last_used_us + ttl_us;
  }
};

}  // namespace folio
