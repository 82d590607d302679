#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "engine/base/mutex.h"

namespace folio {

// Bytes of files, by what they are for.
struct StoreBytes {
  int64_t documents = 0;   // committed, or being written
  int64_t trash = 0;       // until it is emptied
  int64_t quarantine = 0;  // damaged, kept for people to look at

  int64_t total() const { return documents + trash + quarantine; }
};

// What a store takes on disk, under its quota. Thread-safe.
class StoreSpace {
 public:
  explicit StoreSpace(int64_t quota_bytes) : quota_bytes_(quota_bytes) {}

  // Takes `bytes` for files of documents that will be written. Errors: RESOURCE_EXHAUSTED with the
  // arithmetic.
  absl::Status Take(int64_t bytes, std::string_view what);
  // May be negative. What is on disk counts, quota or not.
  void Add(const StoreBytes& bytes);

  StoreBytes used() const;

 private:
  const int64_t quota_bytes_;
  mutable Mutex mu_;
  StoreBytes used_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio
