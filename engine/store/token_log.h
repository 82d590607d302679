#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/record_log.h"

namespace folio {

// Where the logs of a document end.
struct TokenLogEnds {
  LogEnd tokens;
  LogEnd offsets;

  bool operator==(const TokenLogEnds&) const = default;
};

// The token ids of a document, and where each begins in its text, in two logs of one directory:
// "tokens" (ids as they are, 4 bytes each) and "offsets" (differences, about one byte each). One
// thread. After an error it is of no more use.
class TokenLog {
 public:
  static constexpr size_t kTokensPerRecord = 1 << 15;

  // New ones if `ends` says that nothing was committed yet. Errors: those of RecordLog.
  static absl::StatusOr<TokenLog> Open(FileSystem* files, const std::string& directory,
                                       const TokenLogEnds& ends);

  // REQUIRES: as many offsets as ids, 1 to kTokensPerRecord.
  absl::Status Append(std::span<const int32_t> ids, std::span<const int64_t> offsets);
  absl::Status Sync();
  TokenLogEnds ends() const { return {tokens_.end(), offsets_.end()}; }

  // What Append adds to the files.
  static int64_t BytesOf(std::span<const int64_t> offsets);

 private:
  TokenLog(RecordLog tokens, RecordLog offsets)
      : tokens_(std::move(tokens)), offsets_(std::move(offsets)) {}

  RecordLog tokens_;
  RecordLog offsets_;
};

// All of them. Errors: those of ReadLog.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(FileSystem* files, const std::string& directory,
                                                  const LogEnd& end);
absl::StatusOr<std::vector<int64_t>> ReadTokenOffsets(FileSystem* files,
                                                      const std::string& directory,
                                                      const LogEnd& end);

}  // namespace folio
