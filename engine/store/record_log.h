#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"

namespace folio {

// How much of a log counts. A manifest holds it; what lies behind it in the file was not committed.
struct LogEnd {
  int64_t num_items = 0;
  int64_t num_bytes = 0;
  // Of the last record, which covers all before it: a log with this end has this content.
  uint64_t checksum = 0;

  bool operator==(const LogEnd&) const = default;
};

// Appends records to a file:
//   u32 bytes of the payload, u32 number of its items, u64 number of items before it
//   payload
//   u64 XXH3-64 of all this, seeded by the checksum of the record before
// One thread. After an error the log is of no more use: reopen it at the last end that was synced.
class RecordLog {
 public:
  static constexpr size_t kMaxPayloadBytes = 1 << 20;
  static constexpr int64_t kRecordOverheadBytes = 24;

  // Errors: those of FileSystem::Create and Reopen.
  static absl::StatusOr<RecordLog> Create(FileSystem* files, const std::string& path);
  static absl::StatusOr<RecordLog> Reopen(FileSystem* files, const std::string& path,
                                          const LogEnd& end);

  // REQUIRES: 1 to kMaxPayloadBytes bytes, at least one item.
  absl::Status Append(std::string_view payload, uint32_t num_items);
  absl::Status Sync() { return file_->Sync(); }
  const LogEnd& end() const { return end_; }

 private:
  RecordLog(std::unique_ptr<OutputFile> file, const LogEnd& end)
      : file_(std::move(file)), end_(end) {}

  std::unique_ptr<OutputFile> file_;
  LogEnd end_;
};

// Gives each payload up to `end` to `take`, in order, once it is verified; ends with its first
// error. Never takes memory for more than one record. Errors: NOT_FOUND; DATA_LOSS if it is not the
// log that had this end; those of StoredFile::Read.
absl::Status ReadLog(
    FileSystem* files, const std::string& path, const LogEnd& end,
    const std::function<absl::Status(std::string_view payload, uint32_t num_items)>& take);

}  // namespace folio
