#include "engine/store/record_log.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"
#include "engine/store/byte_codec.h"

namespace folio {
namespace {

constexpr int64_t kHeadBytes = 16;
constexpr int64_t kChecksumBytes = 8;
static_assert(kHeadBytes + kChecksumBytes == RecordLog::kRecordOverheadBytes);

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

absl::StatusOr<std::string> ReadBytes(const StoredFile& file, int64_t offset, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  const StoredFile::Piece piece{reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
  FOLIO_RETURN_IF_ERROR(file.Read(offset, {&piece, 1}));
  return bytes;
}

}  // namespace

absl::StatusOr<RecordLog> RecordLog::Create(FileSystem* files, const std::string& path) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, files->Create(path));
  return RecordLog(std::move(file), {});
}

absl::StatusOr<RecordLog> RecordLog::Reopen(FileSystem* files, const std::string& path,
                                            const LogEnd& end) {
  FOLIO_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, files->Reopen(path, end.num_bytes));
  return RecordLog(std::move(file), end);
}

absl::Status RecordLog::Append(std::string_view payload, uint32_t num_items) {
  ByteWriter record;
  record.Number(static_cast<uint32_t>(payload.size()));
  record.Number(num_items);
  record.Number(static_cast<uint64_t>(end_.num_items));
  record.Raw(payload);
  const uint64_t checksum = Checksum(BytesOf(record.bytes()), end_.checksum);
  record.Number(checksum);
  FOLIO_RETURN_IF_ERROR(file_->Write(end_.num_bytes, BytesOf(record.bytes())));
  end_ = {.num_items = end_.num_items + num_items,
          .num_bytes = end_.num_bytes + static_cast<int64_t>(record.bytes().size()),
          .checksum = checksum};
  return absl::OkStatus();
}

absl::Status ReadLog(
    FileSystem* files, const std::string& path, const LogEnd& end,
    const std::function<absl::Status(std::string_view payload, uint32_t num_items)>& take) {
  FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<StoredFile> file, files->Open(path));
  const auto lost = [&](int64_t at) {
    return absl::DataLossError(absl::StrCat(path, " is not what was written, from byte ", at,
                                            " of ", end.num_bytes, " on"));
  };
  if (file->size_bytes() < end.num_bytes) return lost(file->size_bytes());
  LogEnd at;
  while (at.num_bytes < end.num_bytes) {
    const int64_t left = end.num_bytes - at.num_bytes - RecordLog::kRecordOverheadBytes;
    if (left < 1) return lost(at.num_bytes);
    const absl::StatusOr<std::string> head = ReadBytes(*file, at.num_bytes, kHeadBytes);
    if (!head.ok()) return head.status();
    ByteReader fields(*head);
    const auto payload_bytes = fields.Number<uint32_t>();
    const auto num_items = fields.Number<uint32_t>();
    const auto first_item = fields.Number<uint64_t>();
    if (payload_bytes > RecordLog::kMaxPayloadBytes || payload_bytes > left ||
        first_item != static_cast<uint64_t>(at.num_items)) {
      return lost(at.num_bytes);
    }
    const int64_t rest_bytes = int64_t{payload_bytes} + kChecksumBytes;
    FOLIO_ASSIGN_OR_RETURN(const std::string rest,
                           ReadBytes(*file, at.num_bytes + kHeadBytes, rest_bytes));
    const std::string record = *head + rest.substr(0, payload_bytes);
    const uint64_t checksum = Checksum(BytesOf(record), at.checksum);
    ByteReader tail(std::string_view(rest).substr(payload_bytes));
    if (tail.Number<uint64_t>() != checksum) return lost(at.num_bytes);
    FOLIO_RETURN_IF_ERROR(take(std::string_view(rest).substr(0, payload_bytes), num_items));
    at = {.num_items = at.num_items + num_items,
          .num_bytes = at.num_bytes + kHeadBytes + rest_bytes,
          .checksum = checksum};
  }
  return at == end ? absl::OkStatus() : lost(at.num_bytes);
}

}  // namespace folio
