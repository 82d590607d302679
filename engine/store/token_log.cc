#include "engine/store/token_log.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

std::string TokensPath(const std::string& directory) { return absl::StrCat(directory, "/tokens"); }
std::string OffsetsPath(const std::string& directory) {
  return absl::StrCat(directory, "/offsets");
}

absl::StatusOr<RecordLog> OpenLog(FileSystem* files, const std::string& path, const LogEnd& end) {
  if (end.num_bytes > 0) return RecordLog::Reopen(files, path, end);
  // Of an earlier beginning that was never committed.
  FOLIO_RETURN_IF_ERROR(files->Remove(path));
  return RecordLog::Create(files, path);
}

// Between each offset and the one before, the first against 0. Seven bits a byte, the lowest first;
// small differences of either sign are small numbers.
std::string Differences(std::span<const int64_t> offsets) {
  std::string bytes;
  uint64_t last = 0;
  for (const int64_t offset : offsets) {
    const uint64_t difference = static_cast<uint64_t>(offset) - last;
    last = static_cast<uint64_t>(offset);
    uint64_t bits = (difference << 1) ^ (~(difference >> 63) + 1);
    for (; bits >= 0x80; bits >>= 7) bytes.push_back(static_cast<char>(bits | 0x80));
    bytes.push_back(static_cast<char>(bits));
  }
  return bytes;
}

// False if the bytes are no differences.
bool ReadDifferences(std::string_view bytes, uint32_t count, std::vector<int64_t>* offsets) {
  uint64_t offset = 0;
  for (uint32_t n = 0; n < count; ++n) {
    uint64_t bits = 0;
    int shift = 0;
    bool more = true;
    for (; more; shift += 7) {
      if (bytes.empty() || shift > 63) return false;
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      bits |= uint64_t{byte & 0x7fu} << shift;
      more = (byte & 0x80) != 0;
    }
    offset += (bits >> 1) ^ (~(bits & 1) + 1);
    offsets->push_back(static_cast<int64_t>(offset));
  }
  return bytes.empty();
}

absl::Status NoTokens(const std::string& path) {
  return absl::DataLossError(absl::StrCat(path, " holds no tokens"));
}

}  // namespace

absl::StatusOr<TokenLog> TokenLog::Open(FileSystem* files, const std::string& directory,
                                        const TokenLogEnds& ends) {
  FOLIO_ASSIGN_OR_RETURN(RecordLog tokens, OpenLog(files, TokensPath(directory), ends.tokens));
  FOLIO_ASSIGN_OR_RETURN(RecordLog offsets, OpenLog(files, OffsetsPath(directory), ends.offsets));
  return TokenLog(std::move(tokens), std::move(offsets));
}

absl::Status TokenLog::Append(std::span<const int32_t> ids, std::span<const int64_t> offsets) {
  const auto count = static_cast<uint32_t>(ids.size());
  FOLIO_RETURN_IF_ERROR(tokens_.Append(
      {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)}, count));
  return offsets_.Append(Differences(offsets), count);
}

absl::Status TokenLog::Sync() {
  FOLIO_RETURN_IF_ERROR(tokens_.Sync());
  return offsets_.Sync();
}

int64_t TokenLog::BytesOf(std::span<const int64_t> offsets) {
  return static_cast<int64_t>(offsets.size() * sizeof(int32_t) + Differences(offsets).size()) +
         2 * RecordLog::kRecordOverheadBytes;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(FileSystem* files, const std::string& directory,
                                                  const LogEnd& end) {
  std::vector<int32_t> ids;
  const std::string path = TokensPath(directory);
  FOLIO_RETURN_IF_ERROR(
      ReadLog(files, path, end, [&](std::string_view payload, uint32_t num_items) -> absl::Status {
        if (payload.size() != num_items * sizeof(int32_t)) return NoTokens(path);
        const size_t before = ids.size();
        ids.resize(before + num_items);
        std::memcpy(ids.data() + before, payload.data(), payload.size());
        return absl::OkStatus();
      }));
  return ids;
}

absl::StatusOr<std::vector<int64_t>> ReadTokenOffsets(FileSystem* files,
                                                      const std::string& directory,
                                                      const LogEnd& end) {
  std::vector<int64_t> offsets;
  const std::string path = OffsetsPath(directory);
  FOLIO_RETURN_IF_ERROR(
      ReadLog(files, path, end, [&](std::string_view payload, uint32_t num_items) -> absl::Status {
        return ReadDifferences(payload, num_items, &offsets) ? absl::OkStatus() : NoTokens(path);
      }));
  return offsets;
}

}  // namespace folio
