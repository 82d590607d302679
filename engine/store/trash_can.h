#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/base/mutex.h"
#include "engine/store/file_system.h"
#include "engine/store/store_space.h"

namespace folio {

// Where files go that no manifest names any more: renamed, which is quick, and unlinked later; and
// damaged ones, which are kept for people to look at. Neither is ever read again. Thread-safe.
class TrashCan {
 public:
  static constexpr char kTrash[] = "trash";
  static constexpr char kQuarantine[] = "quarantine";
  // Of an earlier one the oldest goes to the trash.
  static constexpr size_t kMaxQuarantined = 8;

  TrashCan(FileSystem* files, StoreSpace* space) : files_(files), space_(space) {}
  // Makes the two directories, or counts what is in them. Errors: those of the file system.
  absl::Status Open();

  // Moves a file or directory of `bytes`, which were counted as a document's. Not durable before
  // both directories are synced. Not there: OK. Errors: those of FileSystem::Rename; they are
  // counted too.
  absl::Status Discard(const std::string& path, int64_t bytes);
  absl::Status Quarantine(const std::string& path, int64_t bytes);
  // As Discard, of something that was not counted.
  absl::Status Reap(const std::string& path, int64_t bytes);

  // Unlinks what is in the trash. What cannot be is left for the next time. Returns how many
  // entries went. One thread at a time.
  int64_t Empty();

  // Damaged documents and renditions that were found since the store was opened.
  int64_t num_quarantined() const;
  // Entries that could not be moved since the store was opened, or not be unlinked the last time.
  int64_t num_unremovable() const;

 private:
  using Entries = std::map<int64_t, int64_t>;  // bytes by number, which is the name

  absl::Status OpenOne(const std::string& directory, Entries* entries);
  int64_t TakeNumber();
  void ThinQuarantine();

  FileSystem* const files_;
  StoreSpace* const space_;
  mutable Mutex mu_;
  int64_t next_number_ FOLIO_GUARDED_BY(mu_) = 0;
  Entries trash_ FOLIO_GUARDED_BY(mu_);
  Entries quarantine_ FOLIO_GUARDED_BY(mu_);
  int64_t num_quarantined_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t num_unmovable_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t num_left_ FOLIO_GUARDED_BY(mu_) = 0;
};

// Of all files below a directory; 0 where it cannot be looked at.
int64_t BytesBelow(FileSystem* files, const std::string& directory);

}  // namespace folio
